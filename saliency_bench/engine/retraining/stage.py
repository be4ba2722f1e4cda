"""Retrains what the metrics of a run ask for, before its chunks: maps of all images, then one training after the other.

    OUT/retraining/IMAGES/gathered/  maps/  states/  outcomes/

IMAGES is a hash of what is trained on. Each process explains its share of the chunks and trains its share of the
networks. Killed at any point, it goes on after the last complete chunk or epoch, and ends with the same outcomes.
"""

import math
import shutil
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np

from saliency_bench.engine.context import INITIAL, Cell, RunContext
from saliency_bench.engine.fitting import Recipe, Training, one_epoch
from saliency_bench.engine.retraining.maps import explain_chunks, gather, missing_chunks
from saliency_bench.engine.retraining.networks import Changed, Task, is_done, new_classifier, outcome_file, retrain
from saliency_bench.engine.retraining.pictures import Pictures, gather_pictures
from saliency_bench.engine.retraining.splits import Splits
from saliency_bench.explainer import Explainer
from saliency_bench.scoring.exposures import EXPOSURES
from saliency_bench.scoring.retraining import Protocol
from saliency_bench.utils.files import read_json
from saliency_bench.utils.hashing import hash_of
from saliency_bench.utils.messages import complain
from saliency_bench.utils.processes import Group, agreed, wait_for_all
from saliency_bench.utils.progress import bar

TRIED = 3  # batches, to say how long it takes


def retrain_for(context: RunContext, cells: Iterable[Cell], accelerator: Group, shown: bool) -> None:
    """Train every network that the retraining metrics among these cells need and that has no outcome yet.

    Raises: UserError for a dataset, classifier or explainer with which that cannot be done.
    """
    asking = [cell for cell in cells if cell.metric.keeps]
    for images in dict.fromkeys(Protocol.of(cell.metric).images for cell in asking):
        own = [cell for cell in asking if Protocol.of(cell.metric).images == images]
        splits = Splits.of(context, images)
        folder = context.out / "retraining" / hash_of([splits.content, images])
        _train(context, splits, folder, own, accelerator, shown)
        for cell in own:
            context.retrained[cell.id] = _outcomes(folder, cell)


def _train(
    context: RunContext, splits: Splits, folder: Path, cells: list[Cell], accelerator: Group, shown: bool
) -> None:
    tasks = {task.key: task for cell in cells for task in tasks_of(cell)}
    shown, processes = shown and accelerator.is_local_main_process, accelerator.num_processes
    todo = agreed(accelerator, lambda: [key for key, task in tasks.items() if not is_done(folder, task)])
    if not todo:
        return
    left, large = [tasks[key] for key in todo], folder / "gathered"
    if accelerator.is_main_process:
        gather_pictures(context, splits, large, shown)
        _announce(context, splits, Pictures.read(large), cells, left, len(tasks) - len(todo), processes)
    wait_for_all(accelerator)
    pictures = Pictures.read(large)
    explainers = list(dict.fromkeys(task.explainer for task in left if task.explainer is not None))
    _explain(context, splits, pictures, explainers, folder, accelerator, shown)
    _train_all(context, splits, pictures, folder, left[accelerator.process_index :: processes], shown)
    wait_for_all(accelerator)
    if accelerator.is_main_process:
        shutil.rmtree(large, ignore_errors=True)  # large, and made anew when needed


def _explain(
    context: RunContext, splits: Splits, pictures: Pictures, explainers: list[Explainer], folder: Path,
    accelerator: Group, shown: bool,
) -> None:  # fmt: skip
    """What is missing of the explainers' maps, each process its share."""
    each = [(explainer, split) for explainer in explainers for split in splits.all]
    todo = agreed(accelerator, lambda: [missing_chunks(context, folder, *one) for one in each])
    own = [numbers[accelerator.process_index :: accelerator.num_processes] for numbers in todo]
    with bar(shown=shown, total=sum(map(len, own)), desc="explain", unit="batch") as advance:
        for (explainer, split), numbers in zip(each, own, strict=True):
            advance.set_postfix_str(f"{explainer}, {split.name} images")
            explain_chunks(context, folder, explainer, split, pictures, numbers, advance.update)
    wait_for_all(accelerator)
    if accelerator.is_main_process:
        for explainer, split in each:
            gather(context, folder, explainer, split, folder / "gathered")
    wait_for_all(accelerator)


def _train_all(
    context: RunContext, splits: Splits, pictures: Pictures, folder: Path, tasks: list[Task], shown: bool
) -> None:
    batches = {task.key: task.protocol.epochs * _batches(splits, task.protocol) for task in tasks}
    with bar(shown=shown, desc="retrain", unit="batch", total=sum(batches.values())) as advance:
        for task in tasks:
            end = advance.n + batches[task.key]
            about = f"{task.explainer or 'without maps'}, {EXPOSURES[task.exposure]:.0%}, training {task.number}"
            advance.set_postfix_str(about)
            retrain(context, splits, pictures, folder, task, advance.update)
            advance.update(end - advance.n)  # epochs of an earlier start, batches of images without a map


def tasks_of(cell: Cell) -> list[Task]:
    """The trainings of a cell, in the order of the parts of its metric."""
    protocol = Protocol.of(cell.metric)
    protocol = replace(protocol, initial=cell.asked_for.get(INITIAL, protocol.initial))
    places = [EXPOSURES.index(exposure) for exposure in protocol.exposures]
    numbers = range(1, protocol.trainings + 1)
    return [Task.of(cell.explainer, place, number, protocol) for place in places for number in numbers]


def _outcomes(folder: Path, cell: Cell) -> np.ndarray:
    """Int (N, P): the class that each network gives each image of the run."""
    test = Protocol.of(cell.metric).test
    return np.array([read_json(outcome_file(folder, task))["answers"][test] for task in tasks_of(cell)]).T


def _announce(
    context: RunContext, splits: Splits, pictures: Pictures, cells: list[Cell], todo: list[Task], done: int,
    processes: int,
) -> None:  # fmt: skip
    """One line: what is trained, and how long it takes by what a few batches take now."""
    sizes = {task.protocol.batch_size for task in todo}
    each = {size: _seconds_per_batch(context, splits, pictures, size) for size in sizes}
    seconds = sum(
        task.protocol.epochs * _batches(splits, task.protocol) * each[task.protocol.batch_size] for task in todo
    )
    counts = sorted({task.protocol.epochs for task in todo})
    names = ", ".join(dict.fromkeys(str(cell.metric) for cell in cells))
    before = f" ({done} others are done)" * bool(done)
    complain(
        f"{names}: {len(todo)} trainings{before} of {len(splits.train.labels)} images for "
        f"{' or '.join(map(str, counts))} epochs, about {_duration(seconds / processes)} after the maps of all images"
    )


def _batches(splits: Splits, protocol: Protocol) -> int:
    """Of an epoch: those that are trained on, and those that choose it."""
    return sum(math.ceil(len(split.labels) / protocol.batch_size) for split in (splits.train, splits.validation))


def _seconds_per_batch(context: RunContext, splits: Splits, pictures: Pictures, size: int) -> float:
    """Of training a network that is thrown away, once the first batch is through."""
    classifier = new_classifier(context, 1)
    training = Training(Recipe(epochs=1, batch_size=size), classifier)
    task = Task(None, 0, 1, Protocol("rest", "modified", 1, 1, 1e-3, size, None))
    whole = Changed.of(task, splits.train, pictures, classifier.device)
    seconds = 0.0
    for kept in (whole.kept[:size], whole.kept[: TRIED * size]):
        start = time.perf_counter()
        one_epoch(classifier, training.optimizer, replace(whole, kept=kept), size, 0)
        seconds = (time.perf_counter() - start) / math.ceil(len(kept) / size)
    return seconds


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{max(1, round(seconds))} s"
    return f"{seconds / 60:.0f} minutes" if seconds < 7200 else f"{seconds / 3600:.1f} hours"
