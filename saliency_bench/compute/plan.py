"""Plan of a run: the chunks that lack something, from its cells and from what the folder holds already.

plan       every incomplete chunk, with the samples of each output that files hold
missing    within a chunk: which outputs of an explainer lack which samples
selected   the samples of a chunk that are explained (`--only`)
"""

from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np

from saliency_bench.bound_explainer import Explainer
from saliency_bench.compute.context import Output, RunContext
from saliency_bench.compute.predictions import (
    StoredPredictions,
    prediction_schema,
    read_predictions,
    stored_predictions,
)
from saliency_bench.compute.store import map_parts, score_parts
from saliency_bench.read.cell import CellKey
from saliency_bench.read.parts import PartNote, files_in, stored_samples
from saliency_bench.read.summary import summarised_names
from saliency_bench.utils.hashing import hash_of
from saliency_bench.utils.messages import complain

UNSHOWN = 10  # cells that are listed
Stored = dict[str, list[int]]  # {cell, or maps that are kept: the positions in a chunk that files hold}


def plan(context: RunContext, keys: dict[str, CellKey]) -> list[tuple[int, Stored]]:
    """Return [(chunk, {output id: positions already on disk})] for every incomplete chunk.

    To be called from the main process only, under the lock. Damaged files are deleted first; so are those with chunks
    in which one of the run's own explainers raised, which may have been a temporary failure, and if the run is strict
    those with any fault. Before predictions of a chunk are there, all its samples are taken to be explained.

    Args:
        context: what the run works on.
        keys: the cells of all starts.
    """
    of_this_start = {hash_of(explainer.identity) for explainer in context.explainers}

    def redo(entry: PartNote) -> bool:
        # What raised may work now (less memory in use, a function that was mended), so that its file is made anew.
        failed = entry.about["raised"] or (context.spec.strict and entry.about["faults"])
        return bool(failed) and entry.group in of_this_start

    predicted = [stored_predictions(run, check=True) for run in context.of_both]
    parts = score_parts(context).check(redo)
    _name_unshown(context, {key for part in parts for entry in part.entries for key in entry.keys}, keys)
    for folder in sorted(files_in(context.out / "maps")):
        parts += map_parts(context, folder.name).check()
    chosen = wanted(context, predicted[0])
    todo: dict[int, Stored] = {
        number: {} for number in context.chunks if any(number not in chunks for chunks in predicted)
    }
    # Parts say which samples they hold, so another --only asks for the rest of a chunk alone.
    stored = stored_samples(parts, [output.id for output in context.outputs], *chosen.shape)
    for output in context.outputs:
        for number in np.flatnonzero((chosen & ~stored[output.id]).any(axis=1)).tolist():
            todo.setdefault(number, {})[output.id] = np.flatnonzero(stored[output.id][number]).tolist()
    return sorted(todo.items())


def _name_unshown(context: RunContext, cells: Collection[str], keys: dict[str, CellKey]) -> None:
    """Print one line about cells that an earlier start has computed and no start names.

    Those that were computed anew with other partners are named by the table.
    """
    names = summarised_names(context.out)
    shown = {f"{key.explainer_text} by {key.metric_text}" for key in keys.values()}
    listed = sorted({names.get(cell, f"cell {cell}") for cell in cells if cell not in keys} - shown)
    if not listed:
        return
    more = f" and {len(listed) - UNSHOWN} more" if len(listed) > UNSHOWN else ""
    complain(
        f"{context.out} also holds cells that are not in the table of this start: {', '.join(listed[:UNSHOWN])}{more}; "
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
    """Return {positions of samples in a chunk: the outputs that no file holds of them}.

    Args:
        chosen: the positions that are explained.
        outputs: cells and kept maps of one explainer.
        stored: {output id: the positions that files hold}.
    """
    lacking: dict[tuple[int, ...], list[Output]] = {}
    for output in outputs:
        if positions := tuple(position for position in chosen if position not in stored.get(output.id, ())):
            lacking.setdefault(positions, []).append(output)
    return lacking


def selected(context: RunContext, number: int, predicted: Sequence[Mapping] | None) -> list[int]:
    """Return the positions in a chunk of the samples that are explained; all, before its predictions are there."""
    size = min(context.spec.batch_size, len(context.rows) - number * context.spec.batch_size)
    if context.selection is None or predicted is None:
        return list(range(size))
    return [position for position in range(size) if context.selection.keeps(predicted[position])]


def wanted(context: RunContext, predictions: StoredPredictions) -> np.ndarray:
    """Return Bool (chunks, samples of a chunk): those that are explained."""
    columns = [name for name in prediction_schema(context).names if name != "logits"]
    chosen = np.zeros((len(context.chunks), context.spec.batch_size), bool)
    for number in context.chunks:
        chosen[number, selected(context, number, None)] = True
    if context.selection is not None:
        for number, table in read_predictions(context, predictions, columns):
            chosen[number] = False
            chosen[number, selected(context, number, table.to_pylist())] = True
    return chosen
