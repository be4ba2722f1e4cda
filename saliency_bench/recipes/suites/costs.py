"""Estimate the cost of a run: the number of images sent through a network, and the time in seconds on this machine.

    forward    images sent through a network: predictions, maps without gradients, images that metrics classify,
               validation
    gradient   images with a forward pass and a backward pass to the input, for maps
    trained    images with a forward pass and a backward pass to the weights; optimiser steps are not timed

The numbers are upper bounds if an explainer or metric declares an upper bound as its `passes`. Metrics that declare no
passes are not counted; most of them do not use the network. The time is estimated from these numbers and from a brief
measurement of the network's speed. An untrained network is as fast as a trained network of the same structure.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from time import perf_counter as clock
from typing import Self

import torch
from PIL import Image

from saliency_bench.bound_explainer import Explainer, as_explainer
from saliency_bench.bound_metric import as_metric
from saliency_bench.compute.classifiers.classifier import Classifier
from saliency_bench.compute.classifiers.loading import load_classifier
from saliency_bench.compute.classifiers.own_networks import is_own
from saliency_bench.compute.fitting import Recipe
from saliency_bench.compute.retraining.tasks import Task
from saliency_bench.compute.scoring.retraining import RetrainingProtocol
from saliency_bench.compute.training import new_classifier
from saliency_bench.errors import UserError
from saliency_bench.read.public_names import public_name
from saliency_bench.read.statistics.exposures import EXPOSURES
from saliency_bench.recipes.suites.suite_jobs import Network, SuiteJob
from saliency_bench.types import Images

SIDE = 224  # assumed side of the images while the network is not available
ROUNDS = 5
CLASSES = 8  # classes of a network that is created only for timing
Key = tuple[str, int, int]  # what a network's speed depends on: starting checkpoint, side of the images, batch size


@dataclass(frozen=True)
class Cost:
    """Numbers of images (see the module docstring), of networks to train, and of networks `retrained` for a metric."""

    images: int = 0
    forward: int = 0
    gradient: int = 0
    trained: int = 0
    networks: int = 0
    retrained: int = 0

    def __bool__(self) -> bool:
        return self != Cost()

    def __add__(self, other: Self) -> "Cost":
        return Cost(*(first + second for first, second in zip(astuple(self), astuple(other), strict=True)))

    def times(self, factor: int) -> "Cost":
        """Return the cost of doing the same work `factor` times."""
        return Cost(*(count * factor for count in astuple(self)))


@dataclass(frozen=True)
class Speed:
    """Time in seconds per image for preprocessing, for a forward pass, for a pass with gradients, and for training."""

    prepare: float
    forward: float
    gradient: float
    trained: float

    def seconds(self, cost: Cost) -> float:
        """Return the estimated time in seconds for the passes counted in `cost`."""
        parts = (cost.images, self.prepare), (cost.forward, self.forward), (cost.gradient, self.gradient)
        return sum(count * each for count, each in (*parts, (cost.trained, self.trained)))


def cost_of_image(pairs: Sequence[tuple[str, str]], side: int = SIDE) -> Cost:
    """Return the cost of classifying one image, explaining it and scoring its maps.

    Args:
        pairs: (explainer, metric) pairs.
        side: Side of the image in pixels.
    """
    if not pairs:
        return Cost()
    total = Cost(images=1, forward=1)  # the prediction
    for text in dict.fromkeys(explainer for explainer, _ in pairs):
        of_map = cost_of_map(as_explainer(text), side)
        total += of_map
        total = sum((cost_of_score(of_map, name, side) for other, name in pairs if other == text), total)
    return total


def cost_of_score(of_map: Cost, name: str, side: int = SIDE) -> Cost:
    """Return the cost of scoring a map with a metric.

    `of_map` is the cost of one map, which is added for each additional map that the metric requests.
    """
    metric = as_metric(name)
    pictures, maps = metric.declaration.passes_of(dict(metric.options), side, side)
    return Cost(forward=pictures) + of_map.times(maps)


def cost_of_map(explainer: Explainer, side: int = SIDE) -> Cost:
    """Return the cost of a map. For a user-defined function, the cost is unknown and counts as zero."""
    passes = explainer.declaration.passes_of(dict(explainer.options), side, side)
    return Cost(gradient=passes) if "gradients" in explainer.declaration.needs else Cost(forward=passes)


def cost_of_training(network: Network, train: int, validation: int, test: int) -> Cost:
    """Return the cost of training a network on splits of these sizes."""
    recipe = network.recipe
    train = min(train, recipe.limit or train)
    return Cost(images=train + validation + test, forward=recipe.epochs * validation + test,
                trained=recipe.epochs * train, networks=1)  # fmt: skip


def cost_of_retraining(
    pairs: Iterable[tuple[str, str]], train: int, validation: int, test: int, side: int = SIDE
) -> Cost:
    """Return the cost of the retraining metrics in these pairs.

    It covers maps of all images, and each distinct training run.
    """
    total, tasks, mapped = Cost(), {}, set()
    for text, name in pairs:
        explainer, metric = as_explainer(text), as_metric(name)
        if not metric.declaration.keeps:
            continue
        protocol = RetrainingProtocol.from_metric(metric)
        count = min(train, protocol.images or train)
        # The protocol compares each explainer's maps with blurred copies, counted at the same cost, and random maps.
        names = [str(explainer)] if explainer.baseline else [str(explainer), f"blurred {explainer}", "random"]
        for maps_of in names:
            for exposure, number in ((e, n) for e in protocol.exposures for n in range(1, protocol.trainings + 1)):
                task = Task.make(explainer, EXPOSURES.index(exposure), number, protocol)
                by_map = (maps_of, protocol.keeps) if task.explainer else ()  # full and empty images need no map
                tasks[by_map, task.exposure, number, count] = protocol
            if (maps_of, count) not in mapped:
                mapped.add((maps_of, count))
                of_map = cost_of_map(explainer, side) if maps_of != "random" else Cost()
                total += of_map.times(count + validation + test)
    for (*_, count), protocol in tasks.items():
        total += Cost(forward=protocol.epochs * validation + 2 * test, trained=protocol.epochs * count, retrained=1)
    return total


def speed_key(job: SuiteJob) -> Key:
    """Return the key under which the speed of a job's network is cached."""
    start = job.networks[0].start if job.networks else str(job.spec.model)
    return public_name(start), job.networks[0].recipe.size if job.networks else SIDE, job.spec.batch_size


def network_like(job: SuiteJob, device: str | None) -> Classifier | None:
    """Return a run's network, or an untrained network of the same structure.

    Return None if neither is on this machine.
    """
    starts = {str(network.out): network.start for network in job.networks}
    name = str(job.spec.model)
    while name in starts and not (Path(name) / "model.safetensors").is_file():
        name = starts[name]
    try:
        if Path(name).is_dir() or is_own(name):
            if job.spec.prompts is not None:  # prompts do not affect the time
                return load_classifier(name, device=device, prompts="{}", labels=["a", "b"])
            return load_classifier(name, device=device)
        from transformers import AutoConfig

        size = job.networks[0].recipe.size if job.networks else SIDE
        config = name if name.endswith("config.json") else AutoConfig.from_pretrained(
            name, local_files_only=True, trust_remote_code=False
        )  # fmt: skip
        names = [f"class {number}" for number in range(CLASSES)]
        classifier, _ = new_classifier(Recipe(size=size), config, names, name)
        return classifier.to(torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu")))
    except (UserError, OSError, ValueError):
        return None


def forward_pass(classifier: Classifier, images: Images) -> None:
    """Send images through a network, and wait until the device has finished."""
    with torch.no_grad():
        classifier(images).sum().item()


def seconds_per_image(work: Callable[[], object], images: int, rounds: int = ROUNDS) -> float:
    """Time work on a batch. Return the seconds per image in the fastest round after a warm-up round.

    The fastest round is least affected by other load on the machine.
    """
    work()  # the first round is slower
    seconds = []
    for _ in range(rounds):
        start = clock()
        work()
        seconds.append((clock() - start) / images)
    return min(seconds)


def speed_of(classifier: Classifier, batch_size: int) -> Speed:
    """Time a network on one batch.

    Preprocessing, forward pass and the gradients of images and of weights are timed separately.
    """
    classifier.eval()
    rows = [{"image": Image.new("RGB", (SIDE, SIDE))}] * batch_size
    images = classifier.prepare(rows).images
    parameters = [parameter for parameter in classifier.model.parameters() if parameter.is_floating_point()]
    needs = [parameter.requires_grad for parameter in parameters]

    def gradient() -> None:
        inputs = images.clone().requires_grad_(True)
        torch.autograd.grad(classifier(inputs).sum(), inputs)[0].sum().item()

    def trained() -> None:
        for parameter in parameters:
            parameter.requires_grad_(True)
        torch.autograd.grad(classifier(images).sum(), parameters, allow_unused=True)[-1]
        forward_pass(classifier, images[:1])  # waits for the device

    try:
        return Speed(
            prepare=seconds_per_image(lambda: classifier.prepare(rows), batch_size),
            forward=seconds_per_image(lambda: forward_pass(classifier, images), batch_size),
            gradient=seconds_per_image(gradient, batch_size),
            trained=seconds_per_image(trained, batch_size),
        )
    finally:
        for parameter, before in zip(parameters, needs, strict=True):
            parameter.requires_grad_(before)
