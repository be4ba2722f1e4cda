"""What a suite is going to do: what is there, what is missing and how to get it, and what it costs on this device.

Costs are counted (`costs.py`) and multiplied by what a batch takes now on this machine: of the network, or of an
untrained one of its structure. Not counted are the start of each run, the reading of pictures and the making of
reports; the range is that of a few rounds of timing. A network that several runs use is trained with the first of them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from math import ceil
from pathlib import Path
from typing import Any

from saliency_bench.bound_explainer import as_explainer
from saliency_bench.bound_metric import as_metric
from saliency_bench.compute.classifiers.own_networks import is_own
from saliency_bench.compute.preflight import check_model, check_start
from saliency_bench.data.loading import find
from saliency_bench.data.names import SPLITS
from saliency_bench.errors import UserError
from saliency_bench.read.cell import explainer_names, read_cells
from saliency_bench.read.run_folder import read_summary
from saliency_bench.read.statistics.reliability import read_reliability
from saliency_bench.recipes.suites.costs import (
    Cost,
    Key,
    Speed,
    cost_of_image,
    cost_of_map,
    cost_of_retraining,
    cost_of_score,
    cost_of_training,
    network_like,
    speed_key,
    speed_of,
)
from saliency_bench.recipes.suites.jobs import Choice, Job
from saliency_bench.recipes.suites.own_work import OwnWork, seconds_of
from saliency_bench.utils.files import read_json
from saliency_bench.utils.messages import complain

WITH_GRADIENT = 3  # forward passes that one with its gradient takes as long as, to compare runs that are not timed
BYTES = 300  # of a record, about
RUN_BYTES = 600_000  # of the report and other files of a run, about


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
        cost: What the other cells cost, with the trainings of networks that no earlier step has: `once`, and `image`
            for each image beyond `used`.
        seconds: How long that takes here: at the least, probably, at the most.
        memory: Bytes of memory that a batch of it took, at the most.
        missing: Sources that are not there, each with how to get it.
        left: (explainer, metric) of the cells that are not there.
        speed: How long its network takes, if that is known.
        trainings: {folder of a network: what its training costs}, a part of `cost`.
        own_work: What maps and scores take beside their passes here, as far as it was tried.
        used: Images that all of the other cells are on already.
        image: What an image costs.
        once: What does not depend on the images of the run: trainings and retrainings.
    """

    job: Job
    dataset: str
    model: str
    images: int | None
    cells: int
    done: int
    cost: Cost | None
    seconds: tuple[float, float, float] | None = None
    memory: int | None = None
    missing: tuple[str, ...] = ()
    left: Sequence[tuple[str, str]] = ()
    speed: Speed | None = None
    trainings: Mapping[Path, Cost] = field(default_factory=dict)
    own_work: OwnWork = field(default_factory=OwnWork)
    used: int = 0
    image: Cost = field(default_factory=Cost)
    once: Cost = field(default_factory=Cost)

    def up_to(self, images: int) -> "Step":
        """Return the run on the first images of its order only, and on no fewer than its cells are on already."""
        if self.images is None or max(images, self.used) >= self.images:
            return self
        images = max(images, self.used)
        spec = self.job.spec.model_copy(update={"limit": images})
        cost = self.once + self.image.times(images - self.used)
        seconds = None if self.speed is None else seconds_of(cost, self.speed, self.own_work)
        return replace(self, job=replace(self.job, spec=spec), images=images, cost=cost, seconds=seconds)

    def beyond(self, images: int) -> "Step":
        """Return what is left of the run once its cells are on so many images."""
        if self.images is None:
            return self
        used = min(max(images, self.used), self.images)
        cost = self.image.times(self.images - used)
        seconds = None if self.speed is None else seconds_of(cost, self.speed, self.own_work)
        return replace(self, used=used, once=Cost(), trainings={}, cost=cost, seconds=seconds)

    @property
    def key(self) -> Key:
        """Return what the speed of its network depends on."""
        return speed_key(self.job)

    @property
    def by_cell(self) -> list[dict[str, Any]]:
        """Return the cost of each missing cell, and, with the metric None, that of the maps of each explainer.

        Predictions, trainings and retrainings are not included.
        """
        costs: list[tuple[str, str | None, Cost]] = []
        _, side, _ = self.key
        for explainer in dict.fromkeys(explainer for explainer, _ in self.left):
            of_map = cost_of_map(as_explainer(explainer), side)
            costs.append((explainer, None, of_map))
            costs += [(explainer, name, cost_of_score(of_map, name, side)) for other, name in self.left
                      if other == explainer]  # fmt: skip
        images = (self.images or 0) - self.used
        return [
            {"explainer": explainer, "metric": metric, "forward": images * cost.forward,
             "gradient": images * cost.gradient,
             "seconds": None if self.speed is None else seconds_of(cost.times(images), self.speed, self.own_work),
             "memory": self.own_work.peak([(explainer, metric)]) or self.memory,
             "megabytes": 0 if metric is None else images * BYTES / 1e6}
            for explainer, metric, cost in costs
        ]  # fmt: skip

    @property
    def passes(self) -> int | None:
        """The cost in forward passes, about."""
        cost = self.cost
        return None if cost is None else cost.forward + WITH_GRADIENT * (cost.gradient + cost.trained)

    @property
    def hours(self) -> float | None:
        """Return the likely time in hours."""
        return None if self.seconds is None else self.seconds[1] / 3600

    @property
    def megabytes(self) -> float | None:
        """Size of its folder and of the checkpoints to train for it, about."""
        if self.images is None:
            return None
        checkpoints = len(self.trainings) * (self.speed.weights if self.speed else 0)
        return (self.images * self.cells * BYTES + RUN_BYTES + checkpoints) / 1e6


def plan_of(
    jobs: Sequence[Job],
    choice: Choice,
    measured: bool = True,
    speeds: dict[Key, Speed | None] | None = None,
    works: dict[Key, OwnWork] | None = None,
) -> list[Step]:
    """Return a step per run.

    Args:
        jobs: The runs.
        choice: What was chosen of the suite.
        measured: Whether networks are loaded, or made untrained, and timed.
        speeds: Those that are known, to which others are added as they are timed.
        works: The same of what maps and scores take beside their passes.
    """
    speeds, works = {} if speeds is None else speeds, {} if works is None else works
    # The cache lives as long as this plan: a build may change it before the next one.
    dataset, trained = cache(_dataset), set[Path]()
    steps = []
    for job in jobs:
        about, sizes, missing = dataset(str(job.spec.dataset), job.spec.split, job.build)
        images = sizes.get(job.spec.split)
        if images is not None and job.spec.limit is not None:
            images = min(images, job.spec.limit)
        pairs = [(str(explainer), str(metric)) for explainer in job.spec.explainers for metric in job.spec.metrics]
        there, used = _cells_there(job)
        is_whole = images is None or used >= images
        new = [pair for pair in pairs if _named(pair) not in there]
        left = new if is_whole else pairs
        used = 0 if new or images is None else min(used, images)
        trainings = {} if images is None else _trainings(job, dataset, trained)
        side = speed_key(job)[1]
        image = cost_of_image(left, side)
        once = sum(trainings.values(), _retrainings(new, sizes, job.spec.split, side)) + Cost(runs=int(bool(left)))
        cost = None if images is None else once + image.times(images - used)
        missing_model = _missing_model(job)
        key = speed_key(job)
        own_work = works.setdefault(key, OwnWork())
        if measured and cost and not missing_model:
            _measure(job, choice, left, speeds, own_work)
        speed = speeds.get(key)
        seconds = None if cost is None or (cost and speed is None) else (0.0, 0.0, 0.0)
        if cost and speed is not None:
            seconds = seconds_of(cost, speed, own_work)
        steps.append(Step(
            job, about, "missing" if missing_model else _model(job), images, len(pairs), len(pairs) - len(left), cost,
            seconds, _memory(left, speed, own_work), tuple(filter(None, (missing, missing_model))),
            left, speed, trainings, own_work, used, image, once,
        ))  # fmt: skip
    return steps


def _measure(
    job: Job, choice: Choice, left: Sequence[tuple[str, str]], speeds: dict[Key, Speed | None], own_work: OwnWork
) -> None:
    """Time the network of a run, unless its speed is known, and what maps and scores take beside its passes."""
    key = speed_key(job)
    if speeds.get(key, ...) is None or (key in speeds and own_work.has_tried(left)):
        return
    network = network_like(job, choice.device)
    if key not in speeds:
        speeds[key] = None if network is None else speed_of(network, job.spec.batch_size)
    speed = speeds[key]
    if network is not None and speed is not None:
        own_work.measure(network, speed, left, job.spec.batch_size)


def _memory(left: Sequence[tuple[str, str]], speed: Speed | None, own_work: OwnWork) -> int | None:
    """Return the memory that a batch takes at the most."""
    known = [None if speed is None else speed.memory, own_work.peak(left)]
    return max((peak for peak in known if peak), default=None)


def _retrainings(new: Sequence[tuple[str, str]], sizes: Mapping[str, int], split: str, side: int) -> Cost:
    """Return what the retrainings of a run cost, whose networks answer for the whole split.

    Args:
        new: (explainer, metric) of the cells that the run has on no image.
        sizes: {split of its dataset: images}.
        split: Of the run.
        side: Of its images, in pixels.
    """
    return cost_of_retraining(new, sizes.get("train", 0), sizes.get("validation", 0), sizes.get(split, 0), side)


def _named(pair: tuple[str, str]) -> tuple[str, str]:
    """Return an explainer and a metric as cells call them."""
    return str(as_explainer(pair[0])), str(as_metric(pair[1]))


def _trainings(
    job: Job, dataset: Callable[[str, str, str], tuple[str, dict[str, int], str]], trained: set[Path]
) -> dict[Path, Cost]:
    """Return {folder: cost} of the trainings of a run's networks.

    Args:
        job: The run.
        dataset: As `_dataset`, for what networks are trained on.
        trained: Networks that are counted already; those of this run are added.
    """
    costs = {}
    for network in job.networks:
        if not network.is_done and network.out not in trained:
            trained.add(network.out)
            _, of_network, _ = dataset(network.dataset, "test", "")
            train, validation, test = (of_network.get(split, 0) for split in SPLITS)
            costs[network.out] = cost_of_training(network, train, validation, test)
    return costs


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
    counts = ("forward", "gradient", "trained", "networks", "retrained")
    rows = [["run", "dataset", "model", "images", "cells", "done", *counts, "memory", "MB", "hours"]]
    for step in steps:
        numbers = [_count(None if step.cost is None else getattr(step.cost, name)) for name in counts]
        rows.append([step.job.folder.name, step.dataset, step.model, _count(step.images), str(step.cells),
                     str(step.done), *numbers, f"{step.memory / 1e9:.1f} GB" if step.memory else "?",
                     "?" if step.megabytes is None else f"{step.megabytes:,.1f}", _hours(step.seconds)])  # fmt: skip
    return rows


def plan_notes(steps: Sequence[Step]) -> list[str]:
    """Return the sums, what is missing, and how to read the plan."""
    cells, done = sum(step.cells for step in steps), sum(step.done for step in steps)
    cost = sum((step.cost for step in steps if step.cost), Cost())
    disk = sum(step.megabytes or 0 for step in steps)
    networks = {network.out for step in steps for network in step.job.networks if not network.is_done}
    lines = [
        f"{len(steps)} runs, {cells} cells, {done} of them done; {len(networks)} networks to train, "
        f"{_count(cost.retrained)} retrainings; {_count(cost.forward)} images forward, {_count(cost.gradient)} with "
        f"gradients, {_count(cost.trained)} trained on in {_count(cost.steps)} steps; {disk:,.0f} MB on disk"
    ]
    known = [step.seconds for step in steps if step.seconds is not None]
    if any(seconds[1] for seconds in known):
        low, middle, high = (sum(seconds[end] for seconds in known) for end in range(3))
        lines[0] += f"; {_hours((low, middle, high))} hours as measured here"
        memory = max((step.memory for step in steps if step.memory), default=0)
        lines[0] += f", {memory / 1e9:.1f} GB of memory" * bool(memory)
        if len(known) < len(steps):
            lines[0] += f", without the {len(steps) - len(known)} runs whose network is not on this machine"
    if uncounted := sum(step.images is None for step in steps):
        lines.append(f"{uncounted} runs are not counted: their dataset is missing")
    return lines + [f"missing: {text}" for text in missing_of(steps)] + _unreliable(steps)


def _unreliable(steps: Sequence[Step]) -> list[str]:
    """Return a line for each finished run with maps of a low reliability: how many draws would reach a higher one."""
    lines = []
    for step in steps:
        if not (path := step.job.folder / "summary.json").is_file():
            continue
        summary = read_json(path)
        known = read_reliability(summary)
        names = explainer_names(read_cells(summary["cells"])) if known else {}
        low = ", ".join(f"{names[key]} {about}" for key, about in known.items() if about.is_low and key in names)
        lines += [f"{step.job.folder.name}: reliability of maps {low}"] * bool(low)
    return lines


def _count(number: int | None) -> str:
    """Return a count as text, "?" if unknown."""
    return "?" if number is None else f"{number:,}"


def _hours(seconds: tuple[float, float, float] | None) -> str:
    """Return seconds as hours with their range, "?" if unknown."""
    if seconds is None:
        return "?"
    low, middle, high = (f"{each / 3600:.1f}" if seconds[1] >= 360 else f"{each / 3600:.3f}" for each in seconds)
    return middle if low == high else f"{middle} ({low} to {high})"


def _dataset(name: str, split: str, build: str) -> tuple[str, dict[str, int], str]:
    """Return where a dataset is, {split: images} as far as known, and what is missing."""
    try:
        source = find(name)
        if source.folder is None:
            return "on the Hub", {}, ""
        sizes = {}
        for part in dict.fromkeys((split, *SPLITS)):
            try:
                sizes[part] = len(source.load(part))
            except UserError:  # not every dataset has all splits
                if part == split:
                    raise
        return "there", sizes, ""
    except UserError as error:
        return "missing", {}, f"{name}: {build or error}"


def _missing_model(job: Job) -> str:
    """Return why its model, or what its networks are trained from, cannot be loaded, as far as names and folders tell.

    Returns "" if nothing is wrong.
    """
    left = [network for network in job.networks if not network.is_done]
    try:
        made = {str(network.out) for network in job.networks}
        for start in {network.start for network in left} - made:
            check_start(start)
        if not job.networks:
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
    if Path(name).is_dir() or is_own(name):
        return "there"
    if name.startswith("torchvision:"):
        return "of torchvision"
    return "downloaded" if isinstance(try_to_load_from_cache(name, "config.json"), str) else "to download"


def _cells_there(job: Job) -> tuple[set[tuple[str, str]], int]:
    """Return (explainer, metric) of the cells that are there, and on how many images."""
    try:
        summary, cells = read_summary(job.folder)
    except UserError:
        return set(), 0
    return {(cell.explainer_text, cell.metric_text) for cell in cells}, summary["dataset"]["used"]
