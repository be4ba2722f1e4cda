"""What a suite is going to do: what is there, what is missing and how to get it, and what it costs on this device.

Passes are images put through a network, at most: `passes()` of explainers and metrics, and one to predict. One with a
gradient counts as three, as a backward pass costs about two forward ones. Metrics without `passes` count as none: most
classify nothing; randomisation and those of pasted regions depend on the network and the images, and retraining says
for itself how long it takes. Hours are passes times the seconds that this network takes for an image of a batch now,
measured where the network is there already.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from math import ceil
from pathlib import Path
from statistics import median
from types import ModuleType

import torch
from PIL import Image

from saliency_bench import registry
from saliency_bench.classifiers.classifier import Classifier
from saliency_bench.classifiers.loading import load_classifier
from saliency_bench.data.loading import find
from saliency_bench.engine.preflight import check_model, check_start
from saliency_bench.engine.suites.jobs import Choice, Job
from saliency_bench.errors import UserError
from saliency_bench.explainer import load_explainer
from saliency_bench.metric import load_metric
from saliency_bench.results.run_folder import read_summary
from saliency_bench.utils.messages import complain

WITH_GRADIENT = 3  # forward passes that one with its gradient takes as long as
SIDE = 224  # of images whose size is not known before the network is there
ROUNDS = 3
BYTES = 300  # of a record, about


@dataclass(frozen=True)
class Step:
    """A run of the plan. dataset, model: what is known of them. done, cells: how many cells are there, of how many.

    images: of the split, up to the limit. passes, hours: of the cells that are left. None where unknown.
    missing: sources that are not there, each with how to get it.
    """

    job: Job
    dataset: str
    model: str
    images: int | None
    cells: int
    done: int
    passes: int | None
    hours: float | None
    missing: tuple[str, ...] = ()

    @property
    def megabytes(self) -> float | None:
        return None if self.images is None else self.images * self.cells * BYTES / 1e6


def plan_of(jobs: Sequence[Job], choice: Choice, measured: bool = True) -> list[Step]:
    """A step per run. measured: whether networks that are there are loaded and timed."""
    dataset, seconds = cache(_dataset), cache(_seconds_per_image)  # of this plan: both may change before the next
    steps = []
    for job in jobs:
        found = dataset(str(job.spec.dataset), job.spec.split, job.build)
        is_timed = measured and Path(str(job.spec.model)).is_dir()
        each = seconds(str(job.spec.model), job.spec.batch_size, choice.device) if is_timed else None
        steps.append(_step(job, *found, each))
    return steps


def side_by_side(steps: Sequence[Step], processes: int) -> list[list[int]] | None:
    """The runs that each process makes by itself; None where they are done earlier if all share the chunks of each run.

    A shared run takes as long as the process with most of its chunks; by themselves, the longest runs come first, each
    to whoever is free. Where both take equally long, whole runs are made: a network is then loaded once, not by all.
    """
    if processes == 1:
        return None
    known = all(step.passes is not None for step in steps)
    costs = [step.passes if known and step.passes is not None else step.cells - step.done for step in steps]
    shared = 0.0
    for step, cost in zip(steps, costs, strict=True):
        chunks = ceil(step.images / step.job.spec.batch_size) if step.images else processes
        shared += cost * ceil(chunks / processes) / chunks
    shares: list[list[int]] = [[] for _ in range(processes)]
    for number in sorted(range(len(steps)), key=lambda number: -costs[number]):
        min(shares, key=lambda own: sum(costs[one] for one in own)).append(number)
    return shares if max(sum(costs[one] for one in own) for own in shares) <= shared else None


def check_sources(steps: Sequence[Step]) -> None:
    """Raises: UserError where something is missing, after a line on each with the command that builds it."""
    missing = missing_of(steps)
    for text in missing:
        complain(f"missing: {text}")
    if missing:
        raise UserError(
            f"{len(missing)} sources are missing (see the lines above) and nothing was started; build them, name their "
            "folder with --data, or leave them out with --select"
        )


def missing_of(steps: Sequence[Step]) -> list[str]:
    """The sources that are missing, each once."""
    return list(dict.fromkeys(text for step in steps for text in step.missing))


def plan_rows(steps: Sequence[Step]) -> list[list[str]]:
    """The plan as a table: header, then a row per run."""
    rows = [["run", "dataset", "model", "images", "cells", "done", "passes", "hours"]]
    for step in steps:
        numbers = [_count(step.images), str(step.cells), str(step.done), _count(step.passes), _hours(step.hours)]
        rows.append([step.job.folder.name, step.dataset, step.model, *numbers])
    return rows


def plan_notes(steps: Sequence[Step]) -> list[str]:
    """The sums, what is missing, and how to read the plan."""
    cells, done = sum(step.cells for step in steps), sum(step.done for step in steps)
    passes = sum(step.passes or 0 for step in steps)
    networks = {one.out for step in steps for one in step.job.networks if not one.is_done}
    disk = sum(step.megabytes or 0 for step in steps)
    lines = [
        f"{len(steps)} runs, {cells} cells, {done} of them done; {len(networks)} networks to train; "
        f"{_count(passes)} passes, {disk:,.0f} MB of records"
    ]
    if hours := sum(step.hours or 0 for step in steps):
        lines[0] += f", {_hours(hours)} hours as measured here"
    if unknown := sum(step.images is None for step in steps):
        lines.append(f"{unknown} runs are not counted: their dataset is missing")
    return lines + [f"missing: {text}" for text in missing_of(steps)]


def _count(number: int | None) -> str:
    return "?" if number is None else f"{number:,}"


def _hours(hours: float | None) -> str:
    return "?" if hours is None else f"{hours:.1f}" if hours >= 0.1 else f"{hours:.3f}"


def _step(job: Job, dataset: str, images: int | None, missing: str, seconds: float | None) -> Step:
    """seconds: that its network takes for an image; None where unknown."""
    if images is not None and job.spec.limit is not None:
        images = min(images, job.spec.limit)
    pairs = [(str(one), str(other)) for one in job.spec.explainers for other in job.spec.metrics]
    there = _done(job, images)
    left = [pair for pair in pairs if _called(pair) not in there]
    total = None if images is None else images * passes_of(left)
    hours = 0.0 if total == 0 else None if total is None or seconds is None else total * seconds / 3600
    sources = tuple(filter(None, (missing, missing_model := _missing_model(job))))
    model = "missing" if missing_model else _model(job)
    return Step(job, dataset, model, images, len(pairs), len(pairs) - len(left), total, hours, sources)


def _dataset(name: str, split: str, build: str) -> tuple[str, int | None, str]:
    """(what is known of it, images of the split, what is missing)"""
    try:
        found = find(name)
        if found.folder is None:
            return "on the Hub", None, ""
        return "there", len(found.load(split)), ""
    except UserError as error:
        return "missing", None, f"{name}: {build or error}"


def _missing_model(job: Job) -> str:
    """Why its model, or what its networks are trained from, cannot be loaded, as far as names and folders tell."""
    left = [network for network in job.networks if not network.is_done]
    try:
        if left:
            check_start(left[0].start)  # all networks of a job start from the same weights
        elif not job.networks:
            check_model(str(job.spec.model))
    except UserError as error:
        return f"model {job.model}: {error}"
    return ""


def _model(job: Job) -> str:
    if job.networks:
        left = [network for network in job.networks if not network.is_done]
        if not left:
            return "trained"
        if any(network.state.exists() for network in left):
            return "training started"
        return f"{len(left)} to train, {left[0].recipe.epochs} epochs"
    name = str(job.spec.model)
    return "there" if Path(name).is_dir() else _cached(name)


def _cached(name: str) -> str:
    from huggingface_hub import try_to_load_from_cache

    if name.startswith("torchvision:"):
        return "of torchvision"
    return "downloaded" if isinstance(try_to_load_from_cache(name, "config.json"), str) else "to download"


def _done(job: Job, images: int | None) -> set[tuple[str, str]]:
    """The explainers and metrics, as cells call them, whose cells are there, of all images of the run."""
    try:
        summary, cells = read_summary(job.folder)
    except UserError:
        return set()
    if images is not None and summary["dataset"]["used"] < images:
        return set()
    return {(cell.explainer_text, cell.metric_text) for cell in cells}


def _called(pair: tuple[str, str]) -> tuple[str, str]:
    explainer, metric = pair
    return str(load_explainer(explainer)), str(load_metric(metric))


def passes_of(pairs: Sequence[tuple[str, str]], side: int = SIDE) -> int:
    """For one image of this side, of these explainers and metrics; one with a gradient counts as three."""
    total = 1 if pairs else 0
    for text in dict.fromkeys(one for one, _ in pairs):
        explainer = load_explainer(text)
        module = registry.load("explainers", explainer.name)
        own = module.passes(dict(explainer.options), side, side) * (WITH_GRADIENT if "gradients" in module.NEEDS else 1)
        further = [_of_metric(metric, side) for one, metric in pairs if one == text]
        total += own + sum(pictures + maps * own for pictures, maps in further)
    return total


def _of_metric(text: str, side: int) -> tuple[int, int]:
    """(pictures that it classifies, maps that it asks for) for each image."""
    metric = load_metric(text)
    module: ModuleType = registry.load("metrics", metric.name, "score")
    return module.passes(dict(metric.options), side, side) if hasattr(module, "passes") else (0, 0)


def _seconds_per_image(model: str, batch_size: int, device: str | None) -> float:
    """Of a forward pass in a batch of this size, the median of some."""
    classifier = load_classifier(model, device=device)
    picture = Image.new("RGB", (SIDE, SIDE))
    images = classifier.prepare([{"image": picture}] * batch_size).images
    with torch.no_grad():
        classifier(images)
        times = [_seconds(classifier, images) for _ in range(ROUNDS)]
    return median(times) / batch_size


def _seconds(classifier: Classifier, images: torch.Tensor) -> float:
    start = time.perf_counter()
    classifier(images).sum().item()  # which waits for the device
    return time.perf_counter() - start
