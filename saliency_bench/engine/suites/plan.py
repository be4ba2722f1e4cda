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

import torch
from PIL import Image

from saliency_bench.bound_explainer import as_explainer
from saliency_bench.bound_metric import as_metric
from saliency_bench.classifiers.loading import load_classifier
from saliency_bench.data.loading import find
from saliency_bench.engine.preflight import check_model, check_start
from saliency_bench.engine.suites.jobs import Choice, Job
from saliency_bench.errors import UserError
from saliency_bench.results.run_folder import read_summary
from saliency_bench.utils.messages import complain

WITH_GRADIENT = 3  # forward passes that one with its gradient takes as long as
SIDE = 224  # of images whose size is not known before the network is there
ROUNDS = 3
BYTES = 300  # of a record, about


@dataclass(frozen=True)
class Step:
    """A run of the plan; None stands for what is not known.

    Attributes:
        job: The run.
        dataset: Where its dataset is, in a word.
        model: Where its model is, in a word.
        images: Images of the split, up to the limit.
        cells: Cells of the run.
        done: Cells that are there.
        passes: Passes that the other cells take.
        hours: Hours that they take.
        missing: Sources that are not there, each with how to get it.
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
        """Size of its records, about."""
        return None if self.images is None else self.images * self.cells * BYTES / 1e6


def plan_of(jobs: Sequence[Job], choice: Choice, measured: bool = True) -> list[Step]:
    """Return a step per run; `measured` says whether networks that are there are loaded and timed."""
    # The caches live as long as this plan: a training or a build may change both before the next one.
    dataset, seconds = cache(_dataset), cache(_seconds_per_image)
    steps = []
    for job in jobs:
        about, images, missing = dataset(str(job.spec.dataset), job.spec.split, job.build)
        if images is not None and job.spec.limit is not None:
            images = min(images, job.spec.limit)
        pairs = [(str(explainer), str(metric)) for explainer in job.spec.explainers for metric in job.spec.metrics]
        done = _cells_done(job, images)
        left = [pair for pair in pairs if (str(as_explainer(pair[0])), str(as_metric(pair[1]))) not in done]
        passes = None if images is None else images * passes_of(left)
        hours = 0.0 if passes == 0 else None
        if passes and measured and Path(str(job.spec.model)).is_dir():
            hours = passes * seconds(str(job.spec.model), job.spec.batch_size, choice.device) / 3600
        missing_model = _missing_model(job)
        steps.append(Step(
            job, about, "missing" if missing_model else _model(job), images, len(pairs), len(pairs) - len(left),
            passes, hours, tuple(filter(None, (missing, missing_model))),
        ))  # fmt: skip
    return steps


def side_by_side(steps: Sequence[Step], processes: int) -> list[list[int]] | None:
    """Return the runs that each process makes by itself, or None if sharing the chunks of each run ends earlier.

    A shared run takes as long as the process with most of its chunks; by themselves, the longest runs come first, each
    to whoever is free. Where both take equally long, whole runs are made: a network is then loaded once, not by all.
    """
    if processes == 1:
        return None
    is_known = all(step.passes is not None for step in steps)
    costs = [step.passes if is_known and step.passes is not None else step.cells - step.done for step in steps]
    shared = 0.0  # cost if all processes share the chunks of each run: that of whoever has most of them
    for step, cost in zip(steps, costs, strict=True):
        chunks = ceil(step.images / step.job.spec.batch_size) if step.images else processes
        shared += cost * ceil(chunks / processes) / chunks
    shares: list[list[int]] = [[] for _ in range(processes)]
    for number in sorted(range(len(steps)), key=lambda number: -costs[number]):
        min(shares, key=lambda share: sum(costs[item] for item in share)).append(number)
    longest = max(sum(costs[number] for number in share) for share in shares)
    return shares if longest <= shared else None


def check_sources(steps: Sequence[Step]) -> None:
    """Raise UserError if something is missing, after a line on each source with the command that builds it."""
    missing = missing_of(steps)
    for text in missing:
        complain(f"missing: {text}")
    if missing:
        raise UserError(
            f"{len(missing)} sources are missing (see the lines above) and nothing was started; build them, name their "
            "folder with --data, or leave them out with --select"
        )


def missing_of(steps: Sequence[Step]) -> list[str]:
    """Return the sources that are missing, each once."""
    return list(dict.fromkeys(text for step in steps for text in step.missing))


def plan_rows(steps: Sequence[Step]) -> list[list[str]]:
    """Return the plan as a table: header, then a row per run."""
    rows = [["run", "dataset", "model", "images", "cells", "done", "passes", "hours"]]
    for step in steps:
        numbers = [_count(step.images), str(step.cells), str(step.done), _count(step.passes), _hours(step.hours)]
        rows.append([step.job.folder.name, step.dataset, step.model, *numbers])
    return rows


def plan_notes(steps: Sequence[Step]) -> list[str]:
    """Return the sums, what is missing, and how to read the plan."""
    cells, done = sum(step.cells for step in steps), sum(step.done for step in steps)
    passes = sum(step.passes or 0 for step in steps)
    networks = {network.out for step in steps for network in step.job.networks if not network.is_done}
    disk = sum(step.megabytes or 0 for step in steps)
    lines = [
        f"{len(steps)} runs, {cells} cells, {done} of them done; {len(networks)} networks to train; "
        f"{_count(passes)} passes, {disk:,.0f} MB of records"
    ]
    if hours := sum(step.hours or 0 for step in steps):
        lines[0] += f", {_hours(hours)} hours as measured here"
    if uncounted := sum(step.images is None for step in steps):
        lines.append(f"{uncounted} runs are not counted: their dataset is missing")
    return lines + [f"missing: {text}" for text in missing_of(steps)]


def _count(number: int | None) -> str:
    """Return a count as text, "?" if unknown."""
    return "?" if number is None else f"{number:,}"


def _hours(hours: float | None) -> str:
    """Return hours as text, "?" if unknown."""
    return "?" if hours is None else f"{hours:.1f}" if hours >= 0.1 else f"{hours:.3f}"


def _dataset(name: str, split: str, build: str) -> tuple[str, int | None, str]:
    """Return where a dataset is, the images of the split if known, and what is missing."""
    try:
        source = find(name)
        if source.folder is None:
            return "on the Hub", None, ""
        return "there", len(source.load(split)), ""
    except UserError as error:
        return "missing", None, f"{name}: {build or error}"


def _missing_model(job: Job) -> str:
    """Return why its model, or what its networks are trained from, cannot be loaded, as far as names and folders tell.

    Returns "" if nothing is wrong.
    """
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
    """Return where a run's model is."""
    if job.networks:
        left = [network for network in job.networks if not network.is_done]
        if not left:
            return "trained"
        if any(network.state.exists() for network in left):
            return "training started"
        return f"{len(left)} to train, {left[0].recipe.epochs} epochs"
    from huggingface_hub import try_to_load_from_cache

    name = str(job.spec.model)
    if Path(name).is_dir():
        return "there"
    if name.startswith("torchvision:"):
        return "of torchvision"
    return "downloaded" if isinstance(try_to_load_from_cache(name, "config.json"), str) else "to download"


def _cells_done(job: Job, images: int | None) -> set[tuple[str, str]]:
    """Return (explainer, metric) of the cells that are there, on all images of the run."""
    try:
        summary, cells = read_summary(job.folder)
    except UserError:
        return set()
    if images is not None and summary["dataset"]["used"] < images:
        return set()
    return {(cell.explainer_text, cell.metric_text) for cell in cells}


def passes_of(pairs: Sequence[tuple[str, str]], side: int = SIDE) -> int:
    """Return the passes of these explainers and metrics for one image of this side."""
    total = 1 if pairs else 0
    for text in dict.fromkeys(explainer for explainer, _ in pairs):
        explainer = as_explainer(text)
        weight = WITH_GRADIENT if "gradients" in explainer.declaration.needs else 1
        passes = explainer.declaration.passes_of(dict(explainer.options), side, side) * weight
        metrics = [_metric_passes(metric, side) for other, metric in pairs if other == text]
        total += passes + sum(pictures + maps * passes for pictures, maps in metrics)
    return total


def _metric_passes(text: str, side: int) -> tuple[int, int]:
    """Return (pictures that a metric classifies, maps that it asks for) for each image."""
    metric = as_metric(text)
    return metric.declaration.passes_of(dict(metric.options), side, side)


def _seconds_per_image(model: str, batch_size: int, device: str | None) -> float:
    """Return the median seconds per image of a forward pass at this batch size."""
    classifier = load_classifier(model, device=device)
    images = classifier.prepare([{"image": Image.new("RGB", (SIDE, SIDE))}] * batch_size).images
    times = []
    with torch.no_grad():
        classifier(images)  # the first pass is slower
        for _ in range(ROUNDS):
            start = time.perf_counter()
            classifier(images).sum().item()  # which waits for the device
            times.append(time.perf_counter() - start)
    return median(times) / batch_size
