"""Retrain the networks that a run's metrics need.

This stage comes before the batches: it computes all maps, then trains each network.

    OUT/retraining/IMAGES/gathered/  maps/  states/  outcomes/

IMAGES is a hash of the training images. Each process explains its share of the images and trains its share of the
networks. If a process is killed at any point, it resumes after the last complete span of images or the last complete
epoch, and produces the same outcomes.
"""

import math
import shutil
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np

from saliency_bench.bound_explainer import Explainer
from saliency_bench.compute.cells import INITIAL, Cell
from saliency_bench.compute.fitting import Recipe, Training, one_epoch
from saliency_bench.compute.loaded import RunModel
from saliency_bench.compute.loading.table import SplitTable
from saliency_bench.compute.retraining.changed_pictures import RetrainingPictures, gather_pictures
from saliency_bench.compute.retraining.map_exposures import explain_spans, gather, missing_spans
from saliency_bench.compute.retraining.splits import Setup, Splits
from saliency_bench.compute.retraining.tasks import Changed, Task, is_done, new_classifier, outcome_file, retrain
from saliency_bench.compute.scoring.retraining import RetrainingProtocol
from saliency_bench.read.report import words
from saliency_bench.read.statistics.exposures import EXPOSURES
from saliency_bench.utils.files import read_json
from saliency_bench.utils.hashing import hash_of
from saliency_bench.utils.messages import complain
from saliency_bench.utils.processes import ProcessGroup, agreed, wait_for_all
from saliency_bench.utils.progress import bar

TIMED = 3  # batches that are timed for the estimate


def retrain_for(
    cells: Iterable[Cell], out: Path, data: SplitTable, model: RunModel, accelerator: ProcessGroup
) -> dict[str, np.ndarray]:
    """Train all networks that the retraining metrics of these cells need and that have no stored outcome.

    Returns:
        {cell id: (N, P) classes that the retrained networks predict for the samples}.

    Raises:
        UserError: The dataset, classifier or an explainer cannot be used for retraining.
    """
    retraining = [cell for cell in cells if cell.metric.declaration.keeps]
    outcomes: dict[str, np.ndarray] = {}
    for images in dict.fromkeys(RetrainingProtocol.from_metric(cell.metric).images for cell in retraining):
        same_images = [cell for cell in retraining if RetrainingProtocol.from_metric(cell.metric).images == images]
        splits = Splits.make(data, model, images)
        folder = out / "retraining" / hash_of([splits.content, images])
        _train(Setup.make(data, model), splits, folder, same_images, accelerator)
        outcomes |= {cell.id: _outcomes(folder, cell) for cell in same_images}
    return outcomes


def _train(setup: Setup, splits: Splits, folder: Path, cells: list[Cell], accelerator: ProcessGroup) -> None:
    """Run the training tasks of these cells that have no outcome yet. All tasks use the same images."""
    tasks = {task.key: task for cell in cells for task in tasks_of(cell)}
    # All processes use one list, because a process may finish a task while another process checks.
    shown, processes = accelerator.is_local_main_process, accelerator.num_processes
    todo = agreed(accelerator, lambda: [key for key, task in tasks.items() if not is_done(folder, task)])
    if not todo:
        return
    left, gathered = [tasks[key] for key in todo], folder / "gathered"
    if accelerator.is_main_process:
        gather_pictures(setup, splits, gathered, shown)
        seconds = _estimated_seconds(setup, splits, RetrainingPictures.read(gathered), left) / processes
        _announce(splits, cells, left, len(tasks) - len(todo), seconds)
    wait_for_all(accelerator)
    pictures = RetrainingPictures.read(gathered)
    explainers = list(dict.fromkeys(task.explainer for task in left if task.explainer is not None))
    _explain(setup, splits, pictures, explainers, folder, accelerator)
    _train_all(setup, splits, pictures, folder, left[accelerator.process_index :: processes], shown)
    wait_for_all(accelerator)
    if accelerator.is_main_process:
        shutil.rmtree(gathered, ignore_errors=True)  # the file is large, and it is recomputed when needed


def _explain(
    setup: Setup, splits: Splits, pictures: RetrainingPictures, explainers: list[Explainer], folder: Path,
    accelerator: ProcessGroup,
) -> None:  # fmt: skip
    """Compute the explainers' missing maps, split over the processes, and gather all maps."""
    pairs = [(explainer, split) for explainer in explainers for split in splits.all]
    missing = agreed(accelerator, lambda: [missing_spans(setup, folder, *pair) for pair in pairs])
    share = [numbers[accelerator.process_index :: accelerator.num_processes] for numbers in missing]
    shown = accelerator.is_local_main_process
    with bar(shown=shown, total=sum(map(len, share)), desc="explain", unit="span") as advance:
        for (explainer, split), numbers in zip(pairs, share, strict=True):
            advance.set_postfix_str(f"{explainer}, {split.name} images")
            explain_spans(setup, folder, explainer, split, pictures, numbers, advance.update)
    wait_for_all(accelerator)
    if accelerator.is_main_process:
        for explainer, split in pairs:
            gather(setup, folder, explainer, split, folder / "gathered")
    wait_for_all(accelerator)


def _train_all(
    setup: Setup, splits: Splits, pictures: RetrainingPictures, folder: Path, tasks: list[Task], shown: bool
) -> None:
    batches = {task.key: task.protocol.epochs * _batches(splits, task.protocol) for task in tasks}
    with bar(shown=shown, desc="retrain", unit="batch", total=sum(batches.values())) as advance:
        for task in tasks:
            end = advance.n + batches[task.key]
            about = f"{task.explainer or 'without maps'}, {EXPOSURES[task.exposure]:.0%}, repetition {task.number}"
            advance.set_postfix_str(about)
            retrain(setup, splits, pictures, folder, task, advance.update)
            advance.update(
                end - advance.n
            )  # skip epochs that an earlier call trained, and batches of images without a map


def tasks_of(cell: Cell) -> list[Task]:
    """Return the training tasks of a cell, in the order of the metric's parts."""
    protocol = RetrainingProtocol.from_metric(cell.metric)
    protocol = replace(protocol, initial=cell.asked_for.get(INITIAL, protocol.initial))
    places = [EXPOSURES.index(exposure) for exposure in protocol.exposures]
    numbers = range(1, protocol.trainings + 1)
    return [Task.make(cell.explainer, place, number, protocol) for place in places for number in numbers]


def _outcomes(folder: Path, cell: Cell) -> np.ndarray:
    """Return the class that each retrained network predicts for each image of the run, Int (N, P)."""
    test = RetrainingProtocol.from_metric(cell.metric).test
    return np.array([read_json(outcome_file(folder, task))["answers"][test] for task in tasks_of(cell)]).T


def _announce(splits: Splits, cells: list[Cell], tasks: list[Task], done: int, seconds: float) -> None:
    """Print the number of networks to train, the number of training images, and the estimated time."""
    epochs = sorted({task.protocol.epochs for task in tasks})
    metrics = ", ".join(dict.fromkeys(str(cell.metric) for cell in cells))
    others = f" ({done} others are done)" * bool(done)
    complain(
        f"{metrics}: {len(tasks)} training runs{others} on {len(splits.train.labels)} images for "
        f"{' or '.join(map(str, epochs))} epochs take about {words.seconds(seconds)}, in addition to the time for the "
        "maps of all images"
    )


def _estimated_seconds(setup: Setup, splits: Splits, pictures: RetrainingPictures, tasks: list[Task]) -> float:
    """Estimate the total time of these training tasks in seconds, by timing a few batches."""
    sizes = {task.protocol.batch_size for task in tasks}
    seconds = {size: _seconds_per_batch(setup, splits, pictures, size) for size in sizes}
    protocols = [task.protocol for task in tasks]
    return sum(item.epochs * _batches(splits, item) * seconds[item.batch_size] for item in protocols)


def _batches(splits: Splits, protocol: RetrainingProtocol) -> int:
    """Return the number of batches per epoch in the training and validation sets together."""
    return sum(math.ceil(len(split.labels) / protocol.batch_size) for split in (splits.train, splits.validation))


def _seconds_per_batch(setup: Setup, splits: Splits, pictures: RetrainingPictures, size: int) -> float:
    """Estimate the seconds per batch from training a throwaway network. The first batch is not timed."""
    classifier = new_classifier(setup, 1)
    training = Training(Recipe(epochs=1, batch_size=size), classifier)
    task = Task(None, 0, 1, RetrainingProtocol("rest", "modified", 1, 1, 1e-3, size, None))
    whole = Changed.make(task, splits.train, pictures, classifier.device)
    seconds = 0.0
    for kept in (whole.kept[:size], whole.kept[: TIMED * size]):
        start = time.perf_counter()
        one_epoch(classifier, training.optimizer, replace(whole, kept=kept), size, 0)
        seconds = (time.perf_counter() - start) / math.ceil(len(kept) / size)
    return seconds
