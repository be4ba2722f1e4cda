"""Plan of a run: the batches that lack something, from its cells and from what the folder already holds.

plan            every incomplete batch, with the samples of each output that files hold
missing         within a batch: which outputs of an explainer lack which samples
chosen_samples  the samples that fit `--only`
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from saliency_bench.bound_explainer import Explainer
from saliency_bench.compute.context import Output, RunContext
from saliency_bench.compute.predictions import StoredPredictions
from saliency_bench.compute.reading import Selection
from saliency_bench.read.cell import CellKey
from saliency_bench.read.parts import PartNote, files_in, stored_samples
from saliency_bench.read.summary import summarised_names
from saliency_bench.types import Samples
from saliency_bench.utils.hashing import hash_of
from saliency_bench.utils.messages import complain

UNSHOWN = 10  # cells that are listed
Stored = dict[str, list[int]]  # {cell, or maps that are kept: positions of the samples of a batch that files hold}


def plan(context: RunContext, keys: dict[str, CellKey]) -> list[tuple[range, Stored]]:
    """Return [(batch, {output id: positions already on disk})] for every incomplete batch.

    To be called from the main process only, under the lock. Damaged files are deleted first; so are those with batches
    in which one of the run's own explainers raised, which may have been a temporary failure, and if the run is strict
    those with any fault.

    Args:
        context: what the run works on.
        keys: the cells of all starts.
    """
    of_this_start = {hash_of(explainer.identity) for explainer in context.explainers}

    def redo(entry: PartNote) -> bool:
        # What raised may work now (less memory in use, a function that was mended), so that its file is made anew.
        failed = entry.about["raised"] or (context.spec.strict and entry.about["faults"])
        return bool(failed) and entry.group in of_this_start

    predicted = [run.predictions(check=True) for run in context.of_both]
    parts = context.store.scores.check(redo)
    _name_unshown(context.out, {key for part in parts for entry in part.entries for key in entry.keys}, keys)
    for folder in sorted(files_in(context.out / "maps")):
        parts += context.store.maps(folder.name).check()
    wanted = chosen_samples(context.selection, predicted[0]) & predicted[0].is_readable
    size = context.spec.batch_size
    todo: dict[int, Stored] = {number: {} for known in predicted for number in _batches_with(~known.is_stored, size)}
    # Parts name the samples that they hold, so another --only or batch size computes the rest of a batch alone.
    stored = stored_samples(parts, [output.id for output in context.outputs], context.end)
    for output in context.outputs:
        stored_here = stored[output.id]
        for number in _batches_with(wanted & ~stored_here, size):
            batch = context.batches[number]
            positions = batch.start + np.flatnonzero(stored_here[batch.start : batch.stop])
            todo.setdefault(number, {})[output.id] = positions.tolist()
    return [(context.batches[number], todo[number]) for number in sorted(todo)]


def _batches_with(samples: np.ndarray, size: int) -> list[int]:
    """Return the numbers of the batches of this size with at least one of these samples, Bool (n,)."""
    return np.unique(np.flatnonzero(samples) // size).tolist()


def _name_unshown(out: Path, cells: Collection[str], keys: dict[str, CellKey]) -> None:
    """Print one line about cells that an earlier start has computed and no start names.

    Those that were computed anew with other partners are named by the table.
    """
    names = summarised_names(out)
    shown = {f"{key.explainer_text} by {key.metric_text}" for key in keys.values()}
    listed = sorted({names.get(cell, f"cell {cell}") for cell in cells if cell not in keys} - shown)
    if not listed:
        return
    more = f" and {len(listed) - UNSHOWN} more" if len(listed) > UNSHOWN else ""
    complain(
        f"{out} also holds cells that are not in the table of this start: {', '.join(listed[:UNSHOWN])}{more}; "
        "name their explainers and metrics again to show them"
    )


def by_explainer(outputs: Iterable[Output]) -> dict[Explainer, list[Output]]:
    """Group cells and kept maps by their explainer."""
    groups: dict[Explainer, list[Output]] = {}
    for output in outputs:
        groups.setdefault(output.explainer, []).append(output)
    return groups


def missing(
    chosen: Sequence[int], outputs: list[Output], stored: Mapping[str, Collection[int]]
) -> dict[tuple[int, ...], list[Output]]:
    """Return {positions of samples: the outputs that no file holds of them}.

    Args:
        chosen: positions of the samples of a batch that are explained.
        outputs: cells and kept maps of one explainer.
        stored: {output id: the positions that files hold}.
    """
    lacking: dict[tuple[int, ...], list[Output]] = {}
    for output in outputs:
        stored_here = set(stored.get(output.id, ()))
        if positions := tuple(position for position in chosen if position not in stored_here):
            lacking.setdefault(positions, []).append(output)
    return lacking


def selected(selection: Selection | None, samples: Samples) -> list[int]:
    """Return the positions of the predicted samples that fit `--only`."""
    return [
        position
        for position, row in zip(samples.positions, samples.rows, strict=True)
        if selection is None or selection.keeps(row)
    ]


def chosen_samples(selection: Selection | None, predictions: StoredPredictions) -> np.ndarray:
    """Return Bool (samples,), whether each fits `--only`; samples without a stored prediction are taken to."""
    chosen = np.ones(len(predictions.is_stored), bool)
    if selection is not None:
        for positions, table in predictions.tables(selection.columns):
            chosen[positions.start : positions.stop] = [selection.keeps(row) for row in table.to_pylist()]
    return chosen
