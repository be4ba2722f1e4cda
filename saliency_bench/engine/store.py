"""The part files of a run: what is there, what is missing, and writing what `work` gives.

Nothing else reads or writes `chunks/`, `maps/` and `thumbnails/` of a run's folder (`merging.py` makes tables of them).
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from saliency_bench.engine.context import RunContext
from saliency_bench.engine.examples import compact_thumbnails, save_thumbnails, thumbnail_strays
from saliency_bench.engine.predictions import predicted_chunks, prediction_parts, wanted
from saliency_bench.engine.work import ChunkResult, Output
from saliency_bench.explainer import Explainer
from saliency_bench.results.cell import CellKey
from saliency_bench.results.parts import (
    Entry,
    Part,
    PartFolder,
    chunks_of,
    files_in,
    maps_of,
    name_ignored,
    stored_samples,
)
from saliency_bench.results.summary import summarised_names
from saliency_bench.utils.hashing import hash_of
from saliency_bench.utils.messages import complain

UNSHOWN = 10  # cells that are listed
Stored = dict[str, list[int]]  # {cell, or maps that are kept: the positions in a chunk that files hold}


def by_explainer(outputs: Iterable[Output]) -> dict[Explainer, list[Output]]:
    """Group cells and kept maps by their explainer."""
    groups: dict[Explainer, list[Output]] = {}
    for output in outputs:
        groups.setdefault(output.explainer, []).append(output)
    return groups


def parts_of(context: RunContext, explainer_id: str) -> PartFolder:
    """Return the folder of an explainer's scores."""
    return chunks_of(context.out, explainer_id, context.run_id, context.spec.batch_size)


def map_parts(context: RunContext, explainer_id: str) -> PartFolder:
    """Return the folder of an explainer's maps, of a run that keeps them."""
    return maps_of(context.out, explainer_id, context.run_id, context.spec.batch_size)


def plan(context: RunContext, keys: dict[str, CellKey]) -> list[tuple[int, Stored]]:
    """Return [(chunk, {output id: positions already on disk})] for every incomplete chunk.

    To be called from the main process only, under the lock. Before predictions of a chunk are there, all its samples
    are taken to be explained.

    Args:
        context: what the run works on.
        keys: the cells of all starts.
    """
    tidy(context, keys)
    predicted = [predicted_chunks(prediction_parts(run).parts()) for run in context.of_both]
    chosen = wanted(context, predicted[0])
    todo: dict[int, Stored] = {
        number: {} for number in context.chunks if any(number not in chunks for chunks in predicted)
    }
    for explainer, outputs in by_explainer(context.outputs).items():
        folders = (folder(context, hash_of(explainer.identity)) for folder in (parts_of, map_parts))
        parts = [part for folder in folders for part in folder.parts()]
        for key, stored in stored_samples(parts, [output.id for output in outputs], *chosen.shape).items():
            for number in np.flatnonzero((chosen & ~stored).any(axis=1)).tolist():
                todo.setdefault(number, {})[key] = np.flatnonzero(stored[number]).tolist()
    return sorted(todo.items())


def tidy(context: RunContext, keys: dict[str, CellKey]) -> None:
    """Delete damaged and redundant part files, compact the rest, warn once about foreign files.

    Of the run's own explainers, a chunk where one raised is dropped, which may have been a temporary failure; and any
    with a fault, if the run is strict.
    """

    def redo(entry: Entry) -> bool:
        return bool(entry.about["raised"] or (context.spec.strict and entry.about["faults"]))

    of_this_start = {hash_of(explainer.identity) for explainer in context.explainers}
    explainers = list(dict.fromkeys(key.explainer_id for key in keys.values()))
    for predictions in map(prediction_parts, context.of_both):
        name_ignored(predictions.path, predictions.strays())
        predictions.check()
    parts = _parts_of_unnamed(context, explainers)
    for above in (context.out / "chunks", context.out / "maps", context.out / "thumbnails"):
        name_ignored(above, sorted({path.name for path in files_in(above)} - set(explainers) - parts.keys()))
    for explainer_id in explainers:
        folder, thumbnails = parts_of(context, explainer_id), context.out / "thumbnails" / explainer_id
        name_ignored(folder.path, folder.strays())
        name_ignored(thumbnails, thumbnail_strays(thumbnails))
        parts[explainer_id] = folder.check(*[redo] * (explainer_id in of_this_start))
        name_ignored(map_parts(context, explainer_id).path, map_parts(context, explainer_id).strays())
        map_parts(context, explainer_id).check()
    _name_unshown(context, {key for listed in parts.values() for part in listed for key in part.groups}, keys)
    compact(context, explainers)


def _parts_of_unnamed(context: RunContext, explainers: Collection[str]) -> dict[str, list[Part]]:
    """Return {explainer id: its parts of this run} of explainers that no start names, as after a loss of run.json."""
    others = [path.name for path in files_in(context.out / "chunks") if path.is_dir() and path.name not in explainers]
    parts = {explainer_id: parts_of(context, explainer_id).parts() for explainer_id in sorted(others)}
    return {explainer_id: listed for explainer_id, listed in parts.items() if listed}


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


def compact(context: RunContext, explainers: Iterable[str], *, full: bool = False) -> None:
    """Make few part files of many.

    To be called from the main process only.

    Args:
        context: what the run works on.
        explainers: ids of the explainers whose files are compacted.
        full: compact complete spans of chunks only, and no predictions, because other processes may still write.
    """
    if not full:
        for run in context.of_both:
            prediction_parts(run).compact()
    for explainer_id in explainers:
        parts_of(context, explainer_id).compact(full=full)
        map_parts(context, explainer_id).compact(full=full)
        compact_thumbnails(context.out / "thumbnails" / explainer_id, context.spec.batch_size, full=full)


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


def write(context: RunContext, result: ChunkResult) -> None:
    """Write the parts of a result: pictures first, so that a chunk with scores has them."""
    if result.thumbnails is not None:
        pictures = context.out / "thumbnails" / result.explainer_id
        maps, positions = result.thumbnails.maps, result.thumbnails.positions
        save_thumbnails(pictures, result.number, maps, positions, context.spec.batch_size)
    if result.maps:
        map_parts(context, result.explainer_id).write(result.number, result.maps, result.positions)
    if result.scores:
        parts_of(context, result.explainer_id).write(result.number, result.scores, result.positions, **result.about)


class Behind:
    """Runs pieces of work that only the host does in a thread, one after the other, while the next is computed.

    An error of a piece is raised by the next call, or at the end; then no further piece is done.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1)
        self._last: Future[None] | None = None

    def put(self, piece: Callable[[], None]) -> None:
        """Start a piece of work once the one before is done, so that memory holds one at a time."""
        self.wait()
        self._last = self._thread.submit(piece)

    def wait(self) -> None:
        """Wait for the last piece of work, and raise its error."""
        if self._last is not None:
            self._last.result()

    def __enter__(self) -> "Behind":
        return self

    def __exit__(self, kind: type | None, *_: object) -> None:
        with self._thread:
            if kind is None:
                self.wait()
