"""Write computed results as part files.

Only this module writes `scores/`, `maps/`, `predictions/`, `other_predictions/` and `thumbnails/` in the folder of a
run. `merging.py` merges the parts into tables. `plan.py` checks which parts exist and deletes damaged parts. Each
process writes its own parts. A part is written once and contains the results of about half a minute of work, or of
more work if the folder has many parts (`GROWTH`). If the process is killed, at most the work of one part is lost, or
the current batch if it takes longer. Complete results are never written again.
"""

from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext, suppress
from time import perf_counter

from saliency_bench.compute.work import BatchResult
from saliency_bench.read.parts import PartFolder, RunStore, StoredResult, files_in

SECONDS = 30.0  # seconds of work per file at first, and thus the most that is lost if a process is killed
FILES = 64  # number of files in a folder after which each further file contains more work
GROWTH = 1.02  # factor per file; at most 2 % of the work can be lost, and a month results in a few hundred files
BYTES = 2**24  # size of results in memory that triggers a write


class Writer:
    """Collect results, and write them as part files in a thread while the next results are computed.

    Use it as a context manager. On exit it writes the remaining results, even if the run is interrupted. If the
    thread raises an error, the next call or the exit raises this error, and nothing more is written.
    """

    def __init__(self, store: RunStore, processes: int = 1):
        """Create a writer without results.

        Args:
            store: Part files of the run.
            processes: Number of processes that write to the folder at the same time.
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
        """Return how many seconds of work each file should contain. The number grows with the number of files."""
        return SECONDS * GROWTH ** max(0, self._files - FILES)

    def add(self, folder: PartFolder, result: StoredResult, kind: str = "") -> None:
        """Add a result for a folder. Results of different `kind` are written to different files."""
        self._waiting.setdefault((folder, kind), []).append(result)
        self._bytes += result.nbytes
        if self._bytes > BYTES or perf_counter() - self._since >= self.seconds:
            self.write()

    def add_batch(self, result: BatchResult) -> None:
        """Add the results of an explainer and its metrics for a batch.

        Pictures are added before scores, so that every stored score has its picture. Results that may have to be
        recomputed are written to files that contain the results of a single explainer, so these files can be deleted as
        a whole.
        """
        group, positions = result.explainer_id, result.positions
        if result.thumbnails is not None:
            pictures = StoredResult(group, positions, {group: result.thumbnails})
            self.add(self.store.thumbnails, pictures)
        if result.maps:
            self.add(self.store.maps(group), StoredResult(group, positions, result.maps))
        if result.scores:
            # A file that may have to be deleted must not contain results of other explainers.
            kind = "raised" if result.about["raised"] else "faults" if result.about["faults"] else ""
            scores = StoredResult(group, positions, result.scores, result.about)
            self.add(self.store.scores, scores, kind and f"{kind} {group}")

    def write(self) -> None:
        """Wait for the previous write to finish, then start writing the collected results.

        Therefore, at most two sets of results are in memory.
        """
        self.wait()
        waiting = self._waiting
        self._files += self.processes * sum(folder == self.store.scores for folder, _ in waiting)
        self._begin()
        if waiting:
            self._last = self._thread.submit(_write_all, waiting)

    def wait(self) -> None:
        """Wait for the thread, and raise any error that it raised."""
        if self._last is not None:
            self._last.result()

    def __enter__(self) -> "Writer":
        return self

    def __exit__(self, kind: type | None, *_: object) -> None:
        # If the run ends with an error, a disk error must not hide that error.
        with self._thread, nullcontext() if kind is None else suppress(OSError):
            self.write()
            self.wait()


def _write_all(waiting: dict[tuple[PartFolder, str], list[StoredResult]]) -> None:
    for (folder, _), results in waiting.items():
        folder.write(results)
