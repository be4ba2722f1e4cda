"""Plan a run: find the incomplete batches from the run's cells and the files in its folder.

plan            every incomplete batch, with the samples of each output that files already contain
missing         the samples of a batch for which outputs of an explainer are missing
chosen_samples  the samples that match `--only`
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from saliency_bench.bound_explainer import Explainer
from saliency_bench.compute.cells import Cell, Output, explainers_of, outputs_of
from saliency_bench.compute.loaded import RunModel
from saliency_bench.compute.loading.table import SplitTable
from saliency_bench.compute.predictions import StoredPredictions
from saliency_bench.compute.reading import Selection
from saliency_bench.read.cell import CellKey
from saliency_bench.read.parts import PartNote, RunStore, files_in, stored_samples
from saliency_bench.read.summary import summarised_names
from saliency_bench.types import Samples
from saliency_bench.utils.hashing import hash_of
from saliency_bench.utils.messages import complain

UNSHOWN = 10  # maximum number of cells that a message lists
Stored = dict[str, list[int]]  # {id of a cell or of kept maps: positions of a batch's samples that files contain}


def plan(
    store: RunStore, data: SplitTable, model: RunModel, cells: Sequence[Cell], keys: dict[str, CellKey]
) -> list[tuple[range, Stored]]:
    """Return [(batch, {output id: positions with results on disk})] for every incomplete batch.

    Call this function from the main process only, while it holds the lock. Damaged files are deleted first. Files with
    results of an explainer of this call are also deleted if the explainer, a metric or the network raised an error,
    because the error may have been temporary. A strict run also deletes files with any other fault.

    Args:
        store: Part files of the run.
        data: Samples of the run.
        model: Network of the run.
        cells: Cells requested by this call to `run`.
        keys: Cells of all calls.
    """
    of_this_start = {hash_of(explainer.identity) for explainer in explainers_of(cells)}

    def redo(entry: PartNote) -> bool:
        # The explainer may succeed now (more free memory, a corrected function), so its results are computed again.
        failed = entry.about["raised"] or (data.spec.strict and entry.about["faults"])
        return bool(failed) and entry.group in of_this_start

    predicted = [StoredPredictions.read(store, data, network, check=True) for network in model.both]
    parts = store.scores.check(redo)
    _name_unshown(store.out, {key for part in parts for entry in part.entries for key in entry.keys}, keys)
    for folder in sorted(files_in(store.out / "maps")):
        parts += store.maps(folder.name).check()
    wanted = chosen_samples(model.question.selection, predicted[0]) & predicted[0].is_readable
    size, outputs = data.spec.batch_size, outputs_of(cells, data.spec.keep_maps)
    todo: dict[int, Stored] = {number: {} for known in predicted for number in _batches_with(~known.is_stored, size)}
    # Parts list their samples, so if --only or the batch size changes, only a batch's missing samples are computed.
    stored = stored_samples(parts, [output.id for output in outputs], data.end)
    for output in outputs:
        stored_here = stored[output.id]
        for number in _batches_with(wanted & ~stored_here, size):
            batch = data.batches[number]
            positions = batch.start + np.flatnonzero(stored_here[batch.start : batch.stop])
            todo.setdefault(number, {})[output.id] = positions.tolist()
    return [(data.batches[number], todo[number]) for number in sorted(todo)]


def _batches_with(samples: np.ndarray, size: int) -> list[int]:
    """Return the indices of the batches of this size in which `samples`, Bool (n,), has at least one True."""
    return np.unique(np.flatnonzero(samples) // size).tolist()


def _name_unshown(out: Path, cells: Collection[str], keys: dict[str, CellKey]) -> None:
    """Print one line about cells that earlier calls of `run` computed and this call does not use.

    Cells that were recomputed with different partners are not mentioned, because the table contains them.
    """
    names = summarised_names(out)
    shown = {f"{key.explainer_text} by {key.metric_text}" for key in keys.values()}
    listed = sorted({names.get(cell, f"cell {cell}") for cell in cells if cell not in keys} - shown)
    if not listed:
        return
    more = f" and {len(listed) - UNSHOWN} more" if len(listed) > UNSHOWN else ""
    complain(
        f"{out} also contains cells that are not shown in this table: {', '.join(listed[:UNSHOWN])}{more}; "
        "add their explainers and metrics to the command to show them"
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
    """Return {positions of samples: outputs whose results are missing for these samples}.

    Args:
        chosen: Positions of the batch's samples that are explained.
        outputs: Cells and kept maps of one explainer.
        stored: {output id: positions that files contain}.
    """
    lacking: dict[tuple[int, ...], list[Output]] = {}
    for output in outputs:
        stored_here = set(stored.get(output.id, ()))
        if positions := tuple(position for position in chosen if position not in stored_here):
            lacking.setdefault(positions, []).append(output)
    return lacking


def selected(selection: Selection | None, samples: Samples) -> list[int]:
    """Return the positions of the predicted samples that match `--only`."""
    return [
        position
        for position, row in zip(samples.positions, samples.rows, strict=True)
        if selection is None or selection.keeps(row)
    ]


def chosen_samples(selection: Selection | None, predictions: StoredPredictions) -> np.ndarray:
    """Return whether each sample matches `--only`, Bool (samples,). Samples without a stored prediction match."""
    chosen = np.ones(len(predictions.is_stored), bool)
    if selection is not None:
        for positions, table in predictions.tables(selection.columns):
            chosen[positions.start : positions.stop] = [selection.keeps(row) for row in table.to_pylist()]
    return chosen
