"""Makes the samples of a build on several threads and keeps them in chunks on disk, in an order that never changes.

A builder yields a `Job` for each image; pictures are decoded and encoded outside Python's lock, so threads use all
cores. Where jobs are Python code (headers of DICOM files, XML), processes make them. A chunk is one Parquet file, whole
or not there: a build that was killed finds the chunks it made and goes on.
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
from threading import Event, Thread
from time import sleep
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from saliency_bench.errors import UserError
from saliency_bench.utils.files import write_with
from saliency_bench.utils.seeds import seed_of

JOBS = 32  # in a chunk: what is lost at most by each worker of a killed build
NOTES = b"saliency-bench"


@dataclass
class Report:
    """What a builder says beside its samples."""

    expected: int | None = None
    classes: dict[str, list[str]] = field(default_factory=dict)
    left_out: list[dict[str, str]] = field(default_factory=list)
    remarks: list[dict[str, str]] = field(default_factory=list)

    def leave_out(self, image_id: str, what: str, reason: str) -> None:
        """`what` is "image" (there will be no such sample) or "mask" (the sample has none)."""
        if what not in ("image", "mask"):
            raise ValueError(f"only an image or a mask is left out, not {what!r}")
        self.left_out.append({"id": image_id, "what": what, "reason": reason})

    def remark(self, image_id: str, text: str) -> None:
        self.remarks.append({"id": image_id, "text": text})

    def count(self, what: str) -> int:
        return sum(entry["what"] == what for entry in self.left_out)

    def add(self, other: "Report") -> None:
        self.left_out += other.left_out
        self.remarks += other.remarks


class Job:
    """A call `make(report, *args)` that gives one sample, several, or None; the arguments are small and plain."""

    def __init__(self, make: Callable, *args: Any):
        self.make, self.args = make, args

    def samples(self, report: Report) -> list[dict]:
        made = self.make(report, *self.args)
        return [] if made is None else [made] if isinstance(made, dict) else list(made)

    def spelled(self) -> str:
        """Names the call, with size and time of the files in it (of a folder: of what lies in it): what changed is made
        again."""
        return json.dumps([self.make.__module__, self.make.__qualname__, self.args], default=_told)


def _told(thing: object) -> object:
    if isinstance(thing, Path):
        files = sorted(thing.iterdir()) if thing.is_dir() else [thing]
        return [str(thing), [[file.name, *_state(file)] for file in files]]
    if is_dataclass(thing):
        return [getattr(thing, one.name) for one in fields(thing)]
    return str(thing)


def _state(file: Path) -> list[int]:
    if not file.exists():
        return []
    state = file.stat()
    return [state.st_size, state.st_mtime_ns]


def made(samples: Iterable[dict | Job], report: Report) -> Iterator[dict]:
    """The samples one after the other, here and now."""
    for item in samples:
        yield from item.samples(report) if isinstance(item, Job) else [item]


class StoppedError(Exception):
    """A thread stops because the build does."""


class Chunks:
    """Samples as rows of tables.

    folder: where the chunks are kept
    row: makes a row of a sample
    schema: of the rows
    workers: how many threads, or processes
    done: is told how many jobs were done
    apart: by processes; `row` must be importable there
    size: how many jobs make a chunk
    """

    def __init__(
        self,
        folder: Path,
        row: Callable[[dict], dict],
        schema: pa.Schema,
        workers: int,
        done: Callable[[int], object] = lambda count: None,
        apart: bool = False,
        size: int = JOBS,
    ):
        self.folder, self.row, self.schema, self.workers, self.done = folder, row, schema, workers, done
        self.stop, self.apart, self.size = Event(), apart, size

    def tables(self, items: Iterable[dict | Job]) -> Iterator[tuple[pa.Table, Report]]:
        """The rows of each chunk in their order, and what was said of them. A few chunks are in memory at once.

        Raises: UserError for a process that was ended from outside.
        """
        waiting: deque[Future[Path]] = deque()
        items = iter(items)
        # Readers of pictures silence warnings one by one, which threads would do to each other; here it is undone.
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
        if not self.apart:
            with ThreadPoolExecutor(self.workers) as threads:
                yield threads
            return
        # Unlike Python's own, it does not run a user's script again.
        from loky.process_executor import ProcessPoolExecutor, TerminatedWorkerError

        processes = ProcessPoolExecutor(self.workers, initializer=end_with, initargs=(os.getpid(),))
        try:
            yield processes
        except TerminatedWorkerError as error:
            raise UserError(
                "a process of the build was ended from outside; if memory ran out, start again with --workers 1"
            ) from error
        finally:
            processes.shutdown(kill_workers=True)

    def _submit(self, pool: Executor, number: int, jobs: list[dict | Job]) -> Future[Path]:
        if not self.apart:
            return pool.submit(chunk, self.folder, number, jobs, self.row, self.schema, self._told)
        made = pool.submit(chunk, self.folder, number, jobs, self.row, self.schema)
        made.add_done_callback(lambda _: made.cancelled() or made.exception() or self.done(len(jobs)))
        return made

    def _told(self, count: int) -> None:
        if self.stop.is_set():
            raise StoppedError
        self.done(count)

    def _read(self, path: Path) -> tuple[pa.Table, Report]:
        table = pq.read_table(path)
        notes = json.loads(table.schema.metadata[NOTES])
        return table, Report(left_out=notes["left_out"], remarks=notes["remarks"])


def end_with(parent: int) -> None:
    """Let this process end when the one that started it has, even if that one was killed."""

    def watch() -> None:
        while os.getppid() == parent:
            sleep(1)
        os._exit(1)

    Thread(target=watch, daemon=True).start()


def chunk(
    folder: Path,
    number: int,
    jobs: list[dict | Job],
    row: Callable[[dict], dict],
    schema: pa.Schema,
    done: Callable[[int], object] = lambda count: None,
) -> Path:
    """The file of a chunk, made if it is not there."""
    calls = (job.spelled() if isinstance(job, Job) else job["image_id"] for job in jobs)
    key = seed_of(schema.metadata, *calls)  # the schema's metadata names the classes
    path = folder / f"{number:06d}-{key:016x}.parquet"
    if path.is_file():
        done(len(jobs))
        return path
    report, rows = Report(), []
    for job in jobs:
        rows += [row(sample) for sample in (job.samples(report) if isinstance(job, Job) else [job])]
        done(1)
    notes = json.dumps({"left_out": report.left_out, "remarks": report.remarks})
    table = pa.Table.from_pylist(rows, schema=schema).replace_schema_metadata({NOTES: notes})
    write_with(path, lambda temporary: pq.write_table(table, temporary, compression="none"))
    return path
