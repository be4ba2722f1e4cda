"""Plan a suite: list which data exists, which data is missing and how to obtain it, and what each run costs.

A cost consists of numbers of passes (`costs.py`) and the time that they take. The time is based on the speed of each
network, or of an untrained network of the same structure, as measured on this machine. The plan does not include the
time for other work on maps and scores, for reading images and for writing reports. If several runs share a network, its
training is counted with the first of these runs.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import ceil
from pathlib import Path

from saliency_bench.bound_explainer import as_explainer
from saliency_bench.bound_metric import as_metric
from saliency_bench.compute.classifiers.own_networks import is_own
from saliency_bench.compute.preflight import check_model, check_start
from saliency_bench.data.dataset_names import SPLITS
from saliency_bench.data.loading import find
from saliency_bench.errors import UserError
from saliency_bench.read.cell import explainer_names, read_cells
from saliency_bench.read.report import words
from saliency_bench.read.run_folder import read_summary
from saliency_bench.read.statistics.reliability import read_reliability
from saliency_bench.recipes.suites.costs import (
    Cost,
    Key,
    Speed,
    cost_of_image,
    cost_of_retraining,
    cost_of_training,
    network_like,
    speed_key,
    speed_of,
)
from saliency_bench.recipes.suites.suite_jobs import SuiteChoice, SuiteJob
from saliency_bench.utils.files import read_json
from saliency_bench.utils.messages import complain

WITH_GRADIENT = 3  # a pass with gradients costs as much as this many forward passes
BYTES = 300  # approximate size of a record
RUN_BYTES = 600_000  # approximate size of the report and other files of a run


@dataclass(frozen=True)
class Step:
    """A run in the plan. Fields are None if their value is unknown.

    Attributes:
        job: The run.
        dataset: Short description of where the dataset is.
        model: Short description of where the model is.
        images: Number of images in the split, up to the limit.
        cells: Number of cells in the run.
        done: Number of cells that already exist.
        cost: Cost of the missing cells, including the training of networks that no earlier step trains.
        seconds: Time in seconds that the passes in `cost` take on this machine.
        missing: Missing sources, each with instructions for obtaining it.
    """

    job: SuiteJob
    dataset: str
    model: str
    images: int | None
    cells: int
    done: int
    cost: Cost | None
    seconds: float | None = None
    missing: tuple[str, ...] = ()

    @property
    def passes(self) -> int | None:
        """Approximate cost in forward passes."""
        cost = self.cost
        return None if cost is None else cost.forward + WITH_GRADIENT * (cost.gradient + cost.trained)

    @property
    def megabytes(self) -> float | None:
        """Approximate size of the run's folder in MB, excluding checkpoints."""
        return None if self.images is None else (self.images * self.cells * BYTES + RUN_BYTES) / 1e6


def plan_of(jobs: Sequence[SuiteJob], choice: SuiteChoice, measured: bool = True) -> list[Step]:
    """Return one step per run.

    Args:
        jobs: The runs.
        choice: The selected parts and settings of the suite.
        measured: Whether to time the networks. If a network has not been trained yet, an untrained network is timed
            instead.
    """
    # The cache is valid only for this plan, because a build can add data before the next plan.
    dataset, trained = cache(_dataset), set[Path]()
    speeds: dict[Key, Speed | None] = {}
    steps = []
    for job in jobs:
        about, sizes, missing = dataset(str(job.spec.dataset), job.spec.split, job.build)
        images = sizes.get(job.spec.split)
        if images is not None and job.spec.limit is not None:
            images = min(images, job.spec.limit)
        pairs = [(str(explainer), str(metric)) for explainer in job.spec.explainers for metric in job.spec.metrics]
        there, used = _cells_there(job)
        is_whole = images is None or used >= images
        new = [pair for pair in pairs if _name(pair) not in there]
        left = new if is_whole else pairs
        used = 0 if new or images is None else min(used, images)
        side = speed_key(job)[1]
        cost = None
        if images is not None:
            cost = cost_of_image(left, side).times(images - used) + _retrainings(new, sizes, job.spec.split, side)
            cost = sum(_trainings(job, dataset, trained), cost)
        missing_model = _missing_model(job)
        seconds = None if cost is None else 0.0
        if cost:
            speed = None if missing_model or not measured else _speed(job, choice, speeds)
            seconds = None if speed is None else speed.seconds(cost)
        steps.append(Step(
            job, about, "missing" if missing_model else _model(job), images, len(pairs), len(pairs) - len(left), cost,
            seconds, tuple(filter(None, (missing, missing_model))),
        ))  # fmt: skip
    return steps


def _speed(job: SuiteJob, choice: SuiteChoice, speeds: dict[Key, Speed | None]) -> Speed | None:
    """Return the speed of a run's network, or None if the network is not on this machine.

    Each network is timed only once.
    """
    key = speed_key(job)
    if key not in speeds:
        network = network_like(job, choice.device)
        speeds[key] = None if network is None else speed_of(network, job.spec.batch_size)
    return speeds[key]


def _retrainings(new: Sequence[tuple[str, str]], sizes: Mapping[str, int], split: str, side: int) -> Cost:
    """Return the cost of retraining networks for a run's metrics. The retrained networks predict the entire split.

    Args:
        new: (explainer, metric) of the cells in which no image has been scored.
        sizes: {split of the dataset: number of images}.
        split: Split of the run.
        side: Side of the images in pixels.
    """
    return cost_of_retraining(new, sizes.get("train", 0), sizes.get("validation", 0), sizes.get(split, 0), side)


def _name(pair: tuple[str, str]) -> tuple[str, str]:
    """Return the names that cells use for an explainer and a metric."""
    return str(as_explainer(pair[0])), str(as_metric(pair[1]))


def _trainings(
    job: SuiteJob, dataset: Callable[[str, str, str], tuple[str, dict[str, int], str]], trained: set[Path]
) -> Iterator[Cost]:
    """Yield the cost of training each network of a run.

    Args:
        job: The run.
        dataset: Cached version of `_dataset`, which is called to get the training data of the networks.
        trained: Networks that are already counted. The networks of this run are added to the set.
    """
    for network in job.networks:
        if not network.is_done and network.out not in trained:
            trained.add(network.out)
            _, of_network, _ = dataset(network.dataset, "test", "")
            train, validation, test = (of_network.get(split, 0) for split in SPLITS)
            yield cost_of_training(network, train, validation, test)


def side_by_side(steps: Sequence[Step], processes: int) -> list[list[int]] | None:
    """Assign entire runs to processes, or return None if it is faster to share the batches of each run.

    A shared run takes as long as the process with the most batches. Otherwise, each free process gets the longest run
    that remains. If both ways take equally long, entire runs are assigned, because each network is then loaded only
    once.
    """
    if processes == 1:
        return None
    is_known = all(step.passes is not None for step in steps)
    costs = [step.passes if is_known and step.passes is not None else step.cells - step.done for step in steps]
    shared = 0.0  # cost if processes share the batches of each run: the cost of the process with the most batches
    for step, cost in zip(steps, costs, strict=True):
        batches = ceil(step.images / step.job.spec.batch_size) if step.images else processes
        shared += cost * ceil(batches / processes) / batches
    shares: list[list[int]] = [[] for _ in range(processes)]
    for number in sorted(range(len(steps)), key=lambda number: -costs[number]):
        min(shares, key=lambda share: sum(costs[item] for item in share)).append(number)
    longest = max(sum(costs[number] for number in share) for share in shares)
    return shares if longest <= shared else None


def check_sources(steps: Sequence[Step]) -> None:
    """Print missing sources with the commands that build them. If there are any, raise UserError."""
    missing = missing_of(steps)
    for text in missing:
        complain(f"missing: {text}")
    if missing:
        raise UserError(
            f"{len(missing)} sources are missing (see the lines above), so nothing was started; build them, set --data "
            "to their folder, or exclude them with --select"
        )


def missing_of(steps: Sequence[Step]) -> list[str]:
    """Return the distinct missing sources."""
    return list(dict.fromkeys(text for step in steps for text in step.missing))


def plan_rows(steps: Sequence[Step]) -> list[list[str]]:
    """Return the plan as a table that consists of a header and one row per run."""
    counts = ("forward", "gradient", "trained", "networks", "retrained")
    rows = [["run", "dataset", "model", "images", "cells", "done", *counts, "MB", "time"]]
    for step in steps:
        numbers = [_count(None if step.cost is None else getattr(step.cost, name)) for name in counts]
        rows.append([step.job.folder.name, step.dataset, step.model, _count(step.images), str(step.cells),
                     str(step.done), *numbers, "?" if step.megabytes is None else f"{step.megabytes:,.1f}",
                     "?" if step.seconds is None else words.seconds(step.seconds)])  # fmt: skip
    return rows


def plan_notes(steps: Sequence[Step]) -> list[str]:
    """Return lines that state the totals, the missing sources, and the runs with unreliable maps."""
    cells, done = sum(step.cells for step in steps), sum(step.done for step in steps)
    cost = sum((step.cost for step in steps if step.cost), Cost())
    disk = sum(step.megabytes or 0 for step in steps)
    networks = {network.out for step in steps for network in step.job.networks if not network.is_done}
    lines = [
        f"{len(steps)} runs, {cells} cells, {done} of them done; {len(networks)} networks to train, and "
        f"{_count(cost.retrained)} to retrain for metrics; passes: {_count(cost.forward)} forward, "
        f"{_count(cost.gradient)} with gradients, {_count(cost.trained)} for training; {disk:,.0f} MB on disk"
    ]
    known = [step.seconds for step in steps if step.seconds is not None]
    if sum(known):
        lines[0] += f"; these passes take about {words.seconds(sum(known))} at the speed measured here"
        if len(known) < len(steps):
            lines[0] += f", excluding {len(steps) - len(known)} runs whose network is not on this machine"
    if uncounted := sum(step.images is None for step in steps):
        lines.append(f"{uncounted} runs are not included in these totals because their dataset is missing")
    return lines + [f"missing: {text}" for text in missing_of(steps)] + _unreliable(steps)


def _unreliable(steps: Sequence[Step]) -> list[str]:
    """Return a line for each finished run with unreliable maps, stating how many draws reliable maps would need."""
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
    """Format a number of images or networks. Return "?" if it is unknown."""
    return "?" if number is None else f"{number:,}"


def _dataset(name: str, split: str, build: str) -> tuple[str, dict[str, int], str]:
    """Return (where a dataset is, {split: number of images} if known, what is missing or "")."""
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


def _missing_model(job: SuiteJob) -> str:
    """Return why a model or starting checkpoint cannot be loaded, or "". Only the name and the folder are checked."""
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


def _model(job: SuiteJob) -> str:
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
        return "from torchvision"
    return "downloaded" if isinstance(try_to_load_from_cache(name, "config.json"), str) else "to download"


def _cells_there(job: SuiteJob) -> tuple[set[tuple[str, str]], int]:
    """Return (existing cells as (explainer, metric), number of images in these cells)."""
    try:
        summary = read_summary(job.folder)
    except UserError:
        return set(), 0
    cells = read_cells(summary["cells"])
    return {(cell.explainer_text, cell.metric_text) for cell in cells}, summary["dataset"]["used"]
