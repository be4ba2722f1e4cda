"""Write: what was computed is written as part files.

Nothing else writes `scores/`, `maps/`, `predictions/`, `other_predictions/` and `thumbnails/` of a run's folder;
`merging.py` makes tables of them, and `plan.py` asks what is there and deletes what is damaged. Parts are written once,
by each process its own: what about half a minute of work has given, as one file. So a kill loses that half minute, or
the batch that was under way if that takes longer; what is complete is never written again.
"""

from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext, suppress
from time import perf_counter

from saliency_bench.compute.work import BatchResult
from saliency_bench.read.parts import PartFolder, RunStore, StoredResult, files_in

SECONDS = 30.0  # of work that a kill loses, at first
FILES = 64  # of a folder before each file holds more work than the one before
GROWTH = 1.02  # by which it does: a kill loses no more than 2 % of the work, and a month is a few hundred files
BYTES = 2**24  # of results that wait to be written


class Writer:
    """Collects results and writes them as part files, in a thread, while the next are computed.

    Used as a context manager, which writes what is left at the end, also of a run that is stopped. An error of the
    thread is raised by the next call, or at the end; then nothing further is written.
    """

    def __init__(self, store: RunStore, processes: int = 1):
        """Begin with nothing.

        Args:
            store: part files of the run.
            processes: how many write to the folder at the same time.
        """
        self.store, self.processes = store, processes
        self._files = len(files_in(store.scores.path))
        self._thread = ThreadPoolExecutor(max_workers=1)
        self._last: Future[None] | None = None
        self._begin()

    def _begin(self) -> None:
        self._waiting: dict[tuple[PartFolder, str], list[StoredResult]] = {}
        self._bytes = 0
        self._since = perf_counter()

    @property
    def seconds(self) -> float:
        """Return the seconds of work that a file holds, which grow with the number of files."""
        return SECONDS * GROWTH ** max(0, self._files - FILES)

    def add(self, folder: PartFolder, result: StoredResult, kind: str = "") -> None:
        """Take a result that belongs to a folder; those of another kind go to another file."""
        self._waiting.setdefault((folder, kind), []).append(result)
        self._bytes += result.nbytes
        if self._bytes > BYTES or perf_counter() - self._since >= self.seconds:
            self.write()

    def add_batch(self, result: BatchResult) -> None:
        """Take what an explainer and its metrics give for a batch: pictures first, so that no score lacks its own.

        What may have to be computed again goes to files of its explainer alone, which can be deleted as a whole.
        """
        group, positions = result.explainer_id, result.positions
        if result.thumbnails is not None:
            pictures = StoredResult(group, positions, {group: result.thumbnails})
            self.add(self.store.thumbnails, pictures)
        if result.maps:
            self.add(self.store.maps(group), StoredResult(group, positions, result.maps))
        if result.scores:
            # A file that may have to be deleted holds no work of others.
            kind = "raised" if result.about["raised"] else "faults" if result.about["faults"] else ""
            scores = StoredResult(group, positions, result.scores, result.about)
            self.add(self.store.scores, scores, kind and f"{kind} {group}")

    def write(self) -> None:
        """Begin to write what was taken, once what was taken before is written: memory holds two such lots."""
        self.wait()
        waiting = self._waiting
        self._files += self.processes * sum(folder == self.store.scores for folder, _ in waiting)
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


def _write_all(waiting: dict[tuple[PartFolder, str], list[StoredResult]]) -> None:
    for (folder, _), results in waiting.items():
        folder.write(results)
