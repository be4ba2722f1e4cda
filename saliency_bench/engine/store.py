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
    held,
    maps_of,
    name_ignored,
)
from saliency_bench.results.summary import summarised_names
from saliency_bench.utils.hashing import hash_of
from saliency_bench.utils.messages import complain

UNSHOWN = 10  # cells that are listed
Held = dict[str, list[int]]  # {cell, or maps that are kept: the positions in a chunk that files hold}


def by_explainer(outputs: Iterable[Output]) -> dict[Explainer, list[Output]]:
    found: dict[Explainer, list[Output]] = {}
    for output in outputs:
        found.setdefault(output.explainer, []).append(output)
    return found


def parts_of(context: RunContext, explainer_id: str) -> PartFolder:
    return chunks_of(context.out, explainer_id, context.run_id, context.spec.batch_size)


def map_parts(context: RunContext, explainer_id: str) -> PartFolder:
    return maps_of(context.out, explainer_id, context.run_id, context.spec.batch_size)


def plan(context: RunContext, keys: dict[str, CellKey]) -> list[tuple[int, Held]]:
    """The chunks of which something is missing, each with the outputs of which it is and the positions that files hold.

    Only the main process, under the lock. Before predictions of a chunk are there, all its samples are taken to be
    explained. keys: the cells of all starts.
    """
    tidy(context, keys)
    known, *others = [predicted_chunks(prediction_parts(one).parts()) for one in context.of_both]
    chosen = wanted(context, known)
    todo: dict[int, Held] = {
        number: {} for number in context.chunks if any(number not in one for one in (known, *others))
    }
    for explainer, own in by_explainer(context.outputs).items():
        folders = (folder(context, hash_of(explainer.identity)) for folder in (parts_of, map_parts))
        parts = [part for folder in folders for part in folder.parts()]
        found = held(parts, [output.id for output in own], *chosen.shape)
        for key, there in found.items():
            for number in np.flatnonzero((chosen & ~there).any(axis=1)).tolist():
                todo.setdefault(number, {})[key] = np.flatnonzero(there[number]).tolist()
    return sorted(todo.items())


def tidy(context: RunContext, plan: dict[str, CellKey]) -> None:
    """Leave few files, all of them whole; what is no part of the run is named once and stays.

    Of the run's own explainers, a chunk where one raised is dropped, which may have been a temporary failure; and any
    with a fault, if the run is strict.
    """

    def redo(entry: Entry) -> bool:
        return bool(entry.about["raised"] or (context.spec.strict and entry.about["faults"]))

    own = {hash_of(explainer.identity) for explainer in context.explainers}
    explainers = list(dict.fromkeys(key.explainer_id for key in plan.values()))
    for predictions in map(prediction_parts, context.of_both):
        name_ignored(predictions.path, predictions.strays())
        predictions.check()
    unnamed = _of_unnamed(context, explainers)
    for above in (context.out / "chunks", context.out / "maps", context.out / "thumbnails"):
        name_ignored(above, sorted({path.name for path in files_in(above)} - set(explainers) - unnamed.keys()))
    for explainer_id in explainers:
        folder, thumbnails = parts_of(context, explainer_id), context.out / "thumbnails" / explainer_id
        name_ignored(folder.path, folder.strays())
        name_ignored(thumbnails, thumbnail_strays(thumbnails))
        unnamed[explainer_id] = folder.check(*[redo] * (explainer_id in own))
        name_ignored(map_parts(context, explainer_id).path, map_parts(context, explainer_id).strays())
        map_parts(context, explainer_id).check()
    _name_unshown(context, {key for parts in unnamed.values() for part in parts for key in part.groups}, plan)
    compact(context, explainers)


def _of_unnamed(context: RunContext, explainers: Collection[str]) -> dict[str, list[Part]]:
    """{explainer: its parts} of this run, of explainers that no start names whose cells `run.json` still has."""
    others = [path.name for path in files_in(context.out / "chunks") if path.is_dir() and path.name not in explainers]
    found = {explainer_id: parts_of(context, explainer_id).parts() for explainer_id in sorted(others)}
    return {explainer_id: parts for explainer_id, parts in found.items() if parts}


def _name_unshown(context: RunContext, cells: Collection[str], plan: dict[str, CellKey]) -> None:
    """One line about cells that an earlier start has computed and no start names, as after the loss of run.json.

    Those that were computed anew with other partners are named by the table.
    """
    names = summarised_names(context.out)
    shown = {f"{key.explainer_text} by {key.metric_text}" for key in plan.values()}
    listed = sorted({names.get(cell, f"cell {cell}") for cell in cells if cell not in plan} - shown)
    if not listed:
        return
    more = f" and {len(listed) - UNSHOWN} more" if len(listed) > UNSHOWN else ""
    complain(
        f"{context.out} also holds cells that are not in the table of this start: {', '.join(listed[:UNSHOWN])}{more}; "
        "name their explainers and metrics again to show them"
    )


def compact(context: RunContext, explainers: Iterable[str], *, full: bool = False) -> None:
    """Few files in the place of many, of these explainers and, unless only full ones are wanted, of the predictions.

    Only the main process. full: only spans of chunks that are complete, as other processes may be writing.
    """
    if not full:
        for one in context.of_both:
            prediction_parts(one).compact()
    for explainer_id in explainers:
        parts_of(context, explainer_id).compact(full=full)
        map_parts(context, explainer_id).compact(full=full)
        compact_thumbnails(context.out / "thumbnails" / explainer_id, context.spec.batch_size, full=full)


def missing(
    chosen: Sequence[int], outputs: list[Output], held: Mapping[str, Collection[int]]
) -> dict[tuple[int, ...], list[Output]]:
    """{positions of samples in a chunk: the outputs that no file holds of them}

    chosen: the positions that are explained. held: {output: those that files hold}.
    """
    found: dict[tuple[int, ...], list[Output]] = {}
    for output in outputs:
        if still := tuple(position for position in chosen if position not in held.get(output.id, ())):
            found.setdefault(still, []).append(output)
    return found


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
    """Work that only the host does, piece after piece in a thread, while the next is computed.

    An error of a piece is raised by the next call, or at the end; then no further piece is done.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1)
        self._last: Future[None] | None = None

    def put(self, piece: Callable[[], None]) -> None:
        """Only one piece is there at a time: what it holds is little."""
        self.wait()
        self._last = self._thread.submit(piece)

    def wait(self) -> None:
        if self._last is not None:
            self._last.result()

    def __enter__(self) -> "Behind":
        return self

    def __exit__(self, kind: type | None, *_: object) -> None:
        with self._thread:
            if kind is None:
                self.wait()
