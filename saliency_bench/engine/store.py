"""The part files of a run: what is there, what is missing, and writing what was computed.

Nothing else writes `chunks/`, `maps/`, `predictions/` and `thumbnails/` of a run's folder; `merging.py` makes tables of
them. Parts are written once, by each process its own: what about half a minute of work has given, as one file. So a
kill loses that half minute, and nothing is ever rewritten.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext, suppress
from time import perf_counter

import numpy as np

from saliency_bench.bound_explainer import Explainer
from saliency_bench.engine.context import RunContext
from saliency_bench.engine.examples import thumbnail_parts, thumbnail_rows
from saliency_bench.engine.predictions import prediction_parts, predictions_of, wanted
from saliency_bench.engine.work import ChunkResult, Output
from saliency_bench.results.cell import CellKey
from saliency_bench.results.parts import (
    Entry,
    PartFolder,
    Result,
    chunks_of,
    files_in,
    maps_of,
    stored_samples,
)
from saliency_bench.results.summary import summarised_names
from saliency_bench.utils.hashing import hash_of
from saliency_bench.utils.messages import complain

SECONDS = 30.0  # of work that a kill loses, at first
FILES = 64  # of a folder before each file holds more work than the one before
GROWTH = 1.02  # by which it does: a kill loses no more than 2 % of the work, and a month is a few hundred files
BYTES = 2**24  # of results that wait to be written
UNSHOWN = 10  # cells that are listed
Stored = dict[str, list[int]]  # {cell, or maps that are kept: the positions in a chunk that files hold}


def by_explainer(outputs: Iterable[Output]) -> dict[Explainer, list[Output]]:
    """Group cells and kept maps by their explainer."""
    groups: dict[Explainer, list[Output]] = {}
    for output in outputs:
        groups.setdefault(output.explainer, []).append(output)
    return groups


def score_parts(context: RunContext) -> PartFolder:
    """Return the folder of the scores."""
    return chunks_of(context.out, context.run_id)


def map_parts(context: RunContext, explainer_id: str) -> PartFolder:
    """Return the folder of an explainer's maps, of a run that keeps them."""
    return maps_of(context.out, explainer_id, context.run_id)


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

    def redo(entry: Entry) -> bool:
        failed = entry.about["raised"] or (context.spec.strict and entry.about["faults"])
        return bool(failed) and entry.group in of_this_start

    predicted = [predictions_of(run, prediction_parts(run).check()) for run in context.of_both]
    parts = score_parts(context).check(redo)
    _name_unshown(context, {key for part in parts for entry in part.entries for key in entry.keys}, keys)
    for folder in sorted(files_in(context.out / "maps")):
        parts += map_parts(context, folder.name).check()
    chosen = wanted(context, predicted[0])
    todo: dict[int, Stored] = {
        number: {} for number in context.chunks if any(number not in chunks for chunks in predicted)
    }
    # Parts say which samples they hold, so a wider limit or another --only asks for the rest of a chunk alone.
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


class Writer:
    """Collects results and writes them as part files, in a thread, while the next are computed.

    Used as a context manager, which writes what is left at the end, also of a run that is stopped. An error of the
    thread is raised by the next call, or at the end; then nothing further is written.
    """

    def __init__(self, context: RunContext, processes: int = 1):
        """Begin with nothing.

        Args:
            context: what the run works on.
            processes: how many write to the folder at the same time.
        """
        self.context, self.processes = context, processes
        self._files = len(files_in(score_parts(context).path))
        self._thread = ThreadPoolExecutor(max_workers=1)
        self._last: Future[None] | None = None
        self._begin()

    def _begin(self) -> None:
        """Begin to collect anew."""
        self._waiting: dict[tuple[PartFolder, str], list[Result]] = {}
        self._bytes = 0
        self._since = perf_counter()

    @property
    def seconds(self) -> float:
        """Return the seconds of work that a file holds, which grow with the number of files."""
        return SECONDS * GROWTH ** max(0, self._files - FILES)

    def add(self, folder: PartFolder, result: Result, kind: str = "") -> None:
        """Take a result that belongs to a folder; those of another kind go to another file."""
        self._waiting.setdefault((folder, kind), []).append(result)
        self._bytes += result.nbytes
        if self._bytes > BYTES or perf_counter() - self._since >= self.seconds:
            self.write()

    def add_chunk(self, result: ChunkResult) -> None:
        """Take what an explainer and its metrics give for a chunk: pictures first, so that scores are not without.

        What may have to be computed again goes to files of its explainer alone, which can be deleted as a whole.
        """
        context, group, number = self.context, result.explainer_id, result.number
        if result.thumbnails is not None:
            rows = thumbnail_rows(result.thumbnails.maps, result.thumbnails.positions, number * context.spec.batch_size)
            self.add(thumbnail_parts(context.out, context.run_id), Result(group, number, {group: rows}))
        if result.maps:
            self.add(map_parts(context, group), Result(group, number, result.maps, result.positions))
        if result.scores:
            # A file that may have to be deleted holds no work of others.
            kind = "raised" if result.about["raised"] else "faults" if result.about["faults"] else ""
            scores = Result(group, number, result.scores, result.positions, result.about)
            self.add(score_parts(context), scores, kind and f"{kind} {group}")

    def write(self) -> None:
        """Begin to write what was taken, once what was taken before is written: memory holds two such lots."""
        self.wait()
        waiting = self._waiting
        self._files += self.processes * sum(folder == score_parts(self.context) for folder, _ in waiting)
        self._begin()
        if waiting:
            self._last = self._thread.submit(_write_all, waiting)

    def wait(self) -> None:
        """Wait for the thread, and raise its error."""
        if self._last is not None:
            self._last.result()

    def __enter__(self) -> "Writer":
        return self

    def __exit__(self, kind: type | None, *_: object) -> None:
        # Where the run ends with an error, one of the disk hides nothing.
        with self._thread, nullcontext() if kind is None else suppress(OSError):
            self.write()
            self.wait()


def _write_all(waiting: dict[tuple[PartFolder, str], list[Result]]) -> None:
    """Write a file of each folder and kind."""
    for (folder, _), results in waiting.items():
        folder.write(results)
