"""Cost of a run: images that go through a network, and seconds by timing the network on this machine.

    forward    images through a network: predictions, maps without gradients, pictures that metrics classify, validation
    gradient   images through a network and back, for maps
    trained    images through a network and back, with a step of the optimiser for each batch
    epochs     of all trainings, after each of which the state is written
    runs       of which each reads its dataset and draws its page, which takes as long for a large network

Counts are upper bounds where `passes` of an explainer or metric is one, and leave out metrics that declare none, most
of which classify nothing. Times are per image, in a batch of the run's size; an untrained network of the same structure
takes as long as a trained one.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from io import BytesIO
from math import ceil
from pathlib import Path
from time import perf_counter as clock
from typing import Self

import numpy as np
import torch
from PIL import Image

from saliency_bench.bound_explainer import Explainer, as_explainer
from saliency_bench.bound_metric import as_metric
from saliency_bench.compute.classifiers.classifier import Classifier
from saliency_bench.compute.classifiers.loading import load_classifier
from saliency_bench.compute.classifiers.own_networks import is_own
from saliency_bench.compute.fitting import Recipe
from saliency_bench.compute.retraining.networks import Task
from saliency_bench.compute.retraining.networks import new_classifier as new_network
from saliency_bench.compute.retraining.splits import Setup
from saliency_bench.compute.scoring.retraining import Protocol
from saliency_bench.compute.training import new_classifier
from saliency_bench.errors import UserError
from saliency_bench.read.public_names import public_name
from saliency_bench.read.statistics.exposures import EXPOSURES
from saliency_bench.recipes.suites.jobs import Job, Network
from saliency_bench.types import Images
from saliency_bench.utils.devices import peak_memory, reset_peak_memory

SIDE = 224  # of images whose size is not known before the network is there
ROUNDS = 5
RUN, RETRAINED = 3.0, 0.1  # seconds beside the passes: of a run, and of a retraining, which reads and writes files
STATE = 4  # a training writes its weights, the best so far and two moments of Adam
CLASSES = 8  # of a network that is only timed
Key = tuple[str, int, int]  # what its speed depends on: where it starts from, side of its images, batch


@dataclass(frozen=True)
class Cost:
    """Counts as the module says; `steps` of the optimiser, `networks` trained, `retrained` for a metric.

    `made` counts maps by explainers as texts, and scores by metrics.
    """

    images: int = 0
    forward: int = 0
    gradient: int = 0
    trained: int = 0
    steps: int = 0
    epochs: int = 0
    networks: int = 0
    retrained: int = 0
    runs: int = 0
    made: Counter[str] = field(default_factory=Counter, compare=False)

    def __bool__(self) -> bool:
        return self != Cost()

    def __add__(self, other: Self) -> "Cost":
        return Cost(*(getattr(self, item.name) + getattr(other, item.name) for item in fields(self)))

    def times(self, factor: int) -> "Cost":
        """Return the cost of so many of the same."""
        numbers = {name: count * factor for name, count in self.counts.items()}
        return Cost(**numbers, made=Counter({text: count * factor for text, count in self.made.items()}))

    @property
    def counts(self) -> dict[str, int]:
        """Return the counts by name, without `made`."""
        return {item.name: getattr(self, item.name) for item in fields(self) if item.name != "made"}


@dataclass(frozen=True)
class Speed:
    """Seconds per image, per step of the optimiser, per `new` network and per `state` of one that is written.

    Each is (fastest, median, slowest) of a few rounds.

    `memory` is that of a batch, in bytes at the most, and `weights` that of a checkpoint.
    """

    prepare: tuple[float, float, float]
    forward: tuple[float, float, float]
    gradient: tuple[float, float, float]
    trained: tuple[float, float, float]
    step: tuple[float, float, float]
    memory: int | None
    new: tuple[float, float, float] = (0.0, 0.0, 0.0)
    state: tuple[float, float, float] = (0.0, 0.0, 0.0)
    weights: int = 0  # bytes of a checkpoint

    def seconds(self, cost: Cost) -> tuple[float, float, float]:
        """Return how long a cost takes: at the least, probably, at the most."""
        parts = [(cost.images, self.prepare), (cost.forward, self.forward), (cost.gradient, self.gradient),
                 (cost.trained, self.trained), (cost.steps, self.step), (cost.epochs, self.state),
                 (cost.networks + cost.retrained, self.new)]  # fmt: skip
        fixed = RUN * cost.runs + RETRAINED * cost.retrained
        low, middle, high = (fixed + sum(count * times[end] for count, times in parts) for end in range(3))
        return low, middle, high


def cost_of_image(pairs: Sequence[tuple[str, str]], side: int = SIDE) -> Cost:
    """Return what explaining and scoring one image of this side costs, for (explainer, metric) as texts."""
    if not pairs:
        return Cost()
    total = Cost(images=1, forward=1)  # its prediction
    for text in dict.fromkeys(explainer for explainer, _ in pairs):
        of_map = cost_of_map(as_explainer(text), side)
        total += of_map
        total = sum((cost_of_score(of_map, name, side) for other, name in pairs if other == text), total)
    return total


def cost_of_score(of_map: Cost, name: str, side: int = SIDE) -> Cost:
    """Return what scoring a map costs by a metric, given as text; `of_map` is what each further map costs."""
    metric = as_metric(name)
    pictures, maps = metric.declaration.passes_of(dict(metric.options), side, side)
    return Cost(forward=pictures, made=Counter([str(metric)])) + of_map.times(maps)


def cost_of_map(explainer: Explainer, side: int = SIDE) -> Cost:
    """Return what a map costs; nothing for a function of your own, of which it is not known."""
    passes = explainer.declaration.passes_of(dict(explainer.options), side, side)
    made = Counter([str(explainer)])
    if "gradients" in explainer.declaration.needs:
        return Cost(gradient=passes, made=made)
    return Cost(forward=passes, made=made)


def cost_of_training(network: Network, train: int, validation: int, test: int) -> Cost:
    """Return what the training of a network costs on splits of so many images."""
    recipe = network.recipe
    train = min(train, recipe.limit or train)
    return Cost(images=train + validation + test, forward=recipe.epochs * validation + test,
                trained=recipe.epochs * train, steps=recipe.epochs * ceil(train / recipe.batch_size),
                epochs=recipe.epochs, networks=1)  # fmt: skip


def cost_of_retraining(
    pairs: Iterable[tuple[str, str]], train: int, validation: int, test: int, side: int = SIDE
) -> Cost:
    """Return what the metrics among these pairs that retrain cost: maps of all images, and each training once."""
    total, tasks, mapped = Cost(), {}, set()
    for text, name in pairs:
        explainer, metric = as_explainer(text), as_metric(name)
        if not metric.declaration.keeps:
            continue
        protocol = Protocol.from_metric(metric)
        count = min(train, protocol.images or train)
        # Each is compared with its own blurred maps, which cost the same, and with random ones.
        names = [str(explainer)] if explainer.baseline else [str(explainer), f"blurred {explainer}", "random"]
        for maps_of in names:
            for exposure, number in ((e, n) for e in protocol.exposures for n in range(1, protocol.trainings + 1)):
                task = Task.make(explainer, EXPOSURES.index(exposure), number, protocol)
                by_map = (maps_of, protocol.keeps) if task.explainer else ()  # whole and empty pictures are of no map
                tasks[by_map, task.exposure, number, count] = protocol
            if (maps_of, count) not in mapped:
                mapped.add((maps_of, count))
                of_map = cost_of_map(explainer, side) if maps_of != "random" else Cost()
                total += of_map.times(count + validation + test)
    for (*_, count), protocol in tasks.items():
        total += Cost(forward=protocol.epochs * validation + 2 * test, trained=protocol.epochs * count,
                      steps=protocol.epochs * ceil(count / protocol.batch_size), epochs=protocol.epochs,
                      retrained=1)  # fmt: skip
    return total


def speed_key(job: Job) -> Key:
    """Return what the speed of a run's network depends on."""
    start = job.networks[0].start if job.networks else str(job.spec.model)
    return public_name(start), job.networks[0].recipe.size if job.networks else SIDE, job.spec.batch_size


def network_like(job: Job, device: str | None) -> Classifier | None:
    """Return the network of a run, or an untrained one of its structure; None if that is not on this machine."""
    starts = {str(network.out): network.start for network in job.networks}
    name = str(job.spec.model)
    while name in starts and not (Path(name) / "model.safetensors").is_file():
        name = starts[name]
    try:
        if Path(name).is_dir() or is_own(name):
            if job.spec.prompts is not None:  # the texts do not affect the time
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
    """Send images through a network and wait for the device."""
    with torch.no_grad():
        classifier(images).sum().item()


def seconds_per_image(work: Callable[[], object], images: int, rounds: int = ROUNDS) -> tuple[float, float, float]:
    """Return the seconds per image of work on a batch of so many: (fastest, median, slowest) of some rounds."""
    work()  # the first round is slower
    seconds = []
    for _ in range(rounds):
        start = clock()
        work()
        seconds.append((clock() - start) / images)
    return min(seconds), float(np.median(seconds)), max(seconds)


def speed_of(classifier: Classifier, batch_size: int, rounds: int = ROUNDS) -> Speed:
    """Time a network on a batch of this size.

    It is prepared for, passed forward, with gradients and in training, changed by Adam, made anew, and written.
    """
    classifier.eval()
    rows = [{"image": Image.new("RGB", (SIDE, SIDE))}] * batch_size
    images = classifier.prepare(rows).images
    reset_peak_memory(images.device)
    parameters = [parameter for parameter in classifier.model.parameters() if parameter.is_floating_point()]
    kept = [parameter.detach().clone() for parameter in parameters]
    adam = torch.optim.Adam([parameter.requires_grad_(True) for parameter in parameters], lr=1e-9)
    labels = torch.zeros(batch_size, dtype=torch.long, device=images.device)

    def gradient() -> None:
        inputs = images.clone().requires_grad_(True)
        torch.autograd.grad(classifier(inputs).sum(), inputs)[0].sum().item()

    def trained() -> None:
        adam.zero_grad()
        loss = torch.nn.functional.cross_entropy(classifier(images), labels)
        loss.backward()
        loss.item()

    def new() -> None:
        with suppress(UserError):  # one of which nothing says how to draw its weights
            _ = new_network(Setup(classifier, None, 0, 0, batch_size), 1).digest

    def state() -> None:
        for _ in range(STATE):
            torch.save(classifier.model.state_dict(), BytesIO())

    def step() -> None:
        adam.step()
        parameters[0].flatten()[0].item()

    try:
        speed = Speed(
            prepare=seconds_per_image(lambda: classifier.prepare(rows), batch_size, rounds),
            forward=seconds_per_image(lambda: forward_pass(classifier, images), batch_size, rounds),
            gradient=seconds_per_image(gradient, batch_size, rounds),
            trained=seconds_per_image(trained, batch_size, rounds),
            step=seconds_per_image(step, 1, rounds),
            memory=peak_memory(images.device),
            new=seconds_per_image(new, 1, rounds=1),
            state=seconds_per_image(state, 1, rounds=1),
            weights=sum(parameter.numel() * parameter.element_size() for parameter in parameters),
        )
    finally:
        with torch.no_grad():
            for parameter, before in zip(parameters, kept, strict=True):
                parameter.copy_(before)
                parameter.grad = None
    return speed
