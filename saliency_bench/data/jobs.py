"""Run the jobs of a build on several threads, and store their samples in batches in a fixed order.

A builder yields one `Job` per image. Images are decoded and encoded without Python's global lock, so threads use all
cores. Jobs in pure Python (headers of DICOM files, XML) run in processes. Each batch is written atomically as one
Parquet file, so a killed build can resume after its last complete batch.
"""

import json
import os
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, is_dataclass
from itertools import islice
from pathlib import Path
from threading import Event
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from saliency_bench.errors import UserError
from saliency_bench.utils.files import write_with
from saliency_bench.utils.interrupts import exit_with_parent
from saliency_bench.utils.messages import complain
from saliency_bench.utils.seeds import seed_of

JOBS = 32  # jobs per batch; if a build is killed, each worker loses at most this many jobs
NOTES = b"saliency-bench"


@dataclass
class BuildLog:
    """Information that a builder provides in addition to samples.

    Attributes:
        expected: Number of jobs, for the progress bar.
        classes: {column: class names}, for classes that are read from the source.
        left_out: Images and masks that were left out of the dataset, each with the reason.
        remarks: Notes on unusual samples that were kept.
        files: {name: content} of files that are published with the rows.
    """

    expected: int | None = None
    classes: dict[str, list[str]] = field(default_factory=dict)
    left_out: list[dict[str, str]] = field(default_factory=list)
    remarks: list[dict[str, str]] = field(default_factory=list)
    files: dict[str, bytes] = field(default_factory=dict)

    def leave_out(self, image_id: str, kind: str, reason: str) -> None:
        """Record that a sample is left out (`kind` is "image") or has no mask ("mask")."""
        if kind not in ("image", "mask"):
            raise ValueError(f"kind must be 'image' or 'mask', not {kind!r}")
        self.left_out.append({"id": image_id, "what": kind, "reason": reason})

    def remark(self, image_id: str, text: str) -> None:
        """Record a remark about a sample."""
        self.remarks.append({"id": image_id, "text": text})

    def count(self, kind: str) -> int:
        """Return the number of images or of masks that were left out."""
        return sum(entry["what"] == kind for entry in self.left_out)

    def add(self, other: "BuildLog") -> None:
        """Add the entries of a second log."""
        self.left_out += other.left_out
        self.remarks += other.remarks


class Job:
    """A call `make(log, *args)` that returns one sample, several samples, or None.

    The arguments should be small and of plain types.
    """

    def __init__(self, make: Callable, *args: Any):
        self.make, self.args = make, args

    def samples(self, log: BuildLog) -> list[dict]:
        """Return the samples of the call."""
        result = self.make(log, *self.args)
        return [] if result is None else [result] if isinstance(result, dict) else list(result)

    def key(self) -> str:
        """Return a key that identifies the call and the state of its files.

        The key includes the size and modification time of each file that is an argument or is inside a folder that is
        an argument. A job is therefore recomputed if its files have changed.
        """
        return json.dumps([self.make.__module__, self.make.__qualname__, self.args], default=_as_json)


def _as_json(value: object) -> object:
    if isinstance(value, Path):
        files = sorted(value.iterdir()) if value.is_dir() else [value]
        return [str(value), [[file.name, *_file_state(file)] for file in files]]
    if is_dataclass(value):
        return [getattr(value, item.name) for item in fields(value)]
    return str(value)


def _file_state(file: Path) -> list[int]:
    if not file.exists():
        return []
    state = file.stat()
    return [state.st_size, state.st_mtime_ns]


def samples_of(items: Iterable[dict | Job], log: BuildLog) -> Iterator[dict]:
    """Run all jobs one after the other in this thread, and yield their samples."""
    for item in items:
        yield from item.samples(log) if isinstance(item, Job) else [item]


class StoppedError(Exception):
    """Error raised in a thread when the build stops."""


class JobBatches:
    """Executor that runs jobs in batches and returns their samples as tables.

    Attributes:
        folder: Folder of the batches.
        to_row: Function that converts a sample to a row.
        schema: Schema of the rows.
        workers: Number of threads or processes.
        on_done: Function that is called with the number of jobs that have just finished.
        in_processes: Whether to use processes instead of threads. Processes must be able to import `to_row`.
        size: Number of jobs per batch.
    """

    def __init__(
        self,
        folder: Path,
        to_row: Callable[[dict], dict],
        schema: pa.Schema,
        workers: int,
        on_done: Callable[[int], object] = lambda count: None,
        in_processes: bool = False,
        size: int = JOBS,
    ):
        self.folder, self.to_row, self.schema, self.workers, self.on_done = folder, to_row, schema, workers, on_done
        self.stop, self.in_processes, self.size = Event(), in_processes, size

    def tables(self, items: Iterable[dict | Job]) -> Iterator[tuple[pa.Table, BuildLog]]:
        """Yield the rows and the log of each batch in order. Only a few batches are in memory at a time.

        Raises:
            UserError: A process was terminated from outside.
        """
        waiting: deque[Future[Path]] = deque()
        items = iter(items)
        # Image decoders change the warning filters, which is not thread-safe, so the filters are restored here.
        with warnings.catch_warnings(), self._pool() as pool:
            try:
                for number, jobs in enumerate(iter(lambda: list(islice(items, self.size)), [])):
                    waiting.append(self._submit(pool, number, jobs))
                    if len(waiting) > self.workers:
                        yield self._read(waiting.popleft().result())
                while waiting:
                    yield self._read(waiting.popleft().result())
            finally:
                self.stop.set()
                for future in waiting:
                    future.cancel()

    @contextmanager
    def _pool(self) -> Iterator[Executor]:
        """Start the threads or processes, and always end them."""
        if not self.in_processes:
            with ThreadPoolExecutor(self.workers) as threads:
                yield threads
            return
        # Unlike the process pool of the standard library, loky does not run the user's script again.
        from loky.process_executor import ProcessPoolExecutor, TerminatedWorkerError

        processes = ProcessPoolExecutor(self.workers, initializer=exit_with_parent, initargs=(os.getpid(),))
        try:
            yield processes
        except TerminatedWorkerError as error:
            raise UserError(
                "a process of the build was terminated from outside, possibly because memory ran out; run the command "
                "again with --workers 1"
            ) from error
        finally:
            processes.shutdown(kill_workers=True)

    def _submit(self, pool: Executor, number: int, jobs: list[dict | Job]) -> Future[Path]:
        batch = (self.folder, number, jobs, self.to_row, self.schema)
        if not self.in_processes:
            return pool.submit(run_batch, *batch, self._count_done)
        future = pool.submit(run_batch, *batch)
        future.add_done_callback(lambda _: future.cancelled() or future.exception() or self.on_done(len(jobs)))
        return future

    def _count_done(self, count: int) -> None:
        """Report finished jobs. This method is thread-safe."""
        if self.stop.is_set():
            raise StoppedError
        self.on_done(count)

    def _read(self, path: Path) -> tuple[pa.Table, BuildLog]:
        table = pq.read_table(path)
        notes = json.loads(table.schema.metadata[NOTES])
        return table, BuildLog(left_out=notes["left_out"], remarks=notes["remarks"])


def run_batch(
    folder: Path,
    number: int,
    jobs: list[dict | Job],
    to_row: Callable[[dict], dict],
    schema: pa.Schema,
    on_done: Callable[[int], object] = lambda count: None,
) -> Path:
    """Return the file of a batch. If the complete file does not exist yet, run the batch's jobs and write it."""
    keys = (job.key() if isinstance(job, Job) else job["image_id"] for job in jobs)
    batch_key = seed_of(schema.metadata, *keys)  # the schema's metadata contains the class names
    path = folder / f"{number:06d}-{batch_key:016x}.parquet"
    if path.is_file() and _is_whole(path):
        on_done(len(jobs))
        return path
    log = BuildLog()
    rows: list[dict] = []
    for job in jobs:
        rows += [to_row(sample) for sample in (job.samples(log) if isinstance(job, Job) else [job])]
        on_done(1)
    notes = json.dumps({"left_out": log.left_out, "remarks": log.remarks})
    table = pa.Table.from_pylist(rows, schema=schema).replace_schema_metadata({NOTES: notes})
    write_with(path, lambda temporary: pq.write_table(table, temporary, compression="none"))
    return path


def _is_whole(path: Path) -> bool:
    """Return whether the file of a batch exists and can be read."""
    try:
        json.loads(pq.read_table(path).schema.metadata[NOTES])
        return True
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError):
        complain(f"{path} cannot be read, so it is recreated")
        return False
