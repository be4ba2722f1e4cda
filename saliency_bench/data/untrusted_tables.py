"""Check untrusted tables before `datasets` reads them in this process.

The page headers of Parquet files state the unpacked size of the data. Other tables are first read in a child process
with limited memory and time, because deeply nested JSON crashes the process that reads it, and reading 200 kB of JSON
or Arrow can take hours or gigabytes.
"""

import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import datasets
import pyarrow as pa
from datasets import DatasetBuilder, DownloadManager

from saliency_bench.data.untrusted_reports import TABLES
from saliency_bench.errors import UserError, one_line
from saliency_bench.utils.bounded import MEMORY, SECONDS, ReaderDiedError, bounded
from saliency_bench.utils.parquet_pages import MOST_BYTES, check_table

PARQUET, ARROW = ".parquet", ".arrow"
BYTES_PER_SECOND = 2**20  # minimum reading speed, which determines the time limit for large tables
LARGEST_COPY = 2**40  # maximum bytes of a file that `datasets` writes


def check_tables(files: Iterable[Path], name: str) -> None:
    """Raise UserError if a Parquet or Arrow file is damaged or expands to more than the size limit."""
    for path in files:
        kind = path.suffix.lower()
        try:
            most = max(MOST_BYTES, 10 * path.stat().st_size)
            if kind == PARQUET:
                check_table(path, most)
            elif kind == ARROW:
                _in_child(read_arrow, [path], str(path), most)
        except (pa.ArrowException, OSError, ValueError) as error:
            raise UserError(f"{path.name} of {name} cannot be read: {one_line(error)}") from error


def prepare_in_child(folder: Path, config: str | None, files: Iterable[Path], cache: Path, copy: Path) -> None:
    """Write the cached copy of a folder in a child process.

    If the copy exists, or if all tables are Parquet files, do nothing.

    Raises:
        UserError: The child process crashed or exceeded a limit. Other errors are ignored, because they occur again
            when this process reads the folder.
    """
    tables = [path for path in files if path.suffix.lower() in TABLES and path.suffix.lower() != PARQUET]
    if not tables or copy.exists():
        return
    try:
        _in_child(prepare, tables, str(folder), config, str(cache), str(copy))
    except ReaderDiedError as error:
        shutil.rmtree(f"{copy}.incomplete", ignore_errors=True)
        raise UserError(f"the tables of {folder} cannot be read: {one_line(error)}") from error
    except UserError:
        pass


def check_downloads(builder: DatasetBuilder, folder: Path, config: str | None, name: str) -> None:
    """Make a builder check tables after it has downloaded all files to `folder` and before it reads them."""
    split = builder._split_generators

    def checked(manager: DownloadManager, *args: Any, **options: Any) -> Any:
        urls = [url for files in (builder.config.data_files or {}).values() for url in files]
        files = list(map(Path, manager.download(urls)))
        check_tables(files, name)
        with TemporaryDirectory() as scratch:
            prepare_in_child(folder, config, files, Path(scratch, "cache"), Path(scratch, "copy"))
        return split(manager, *args, **options)

    builder._split_generators = checked


def _in_child(function: Callable[..., bytes], files: Iterable[Path], *args: Any) -> None:
    size = sum(path.stat().st_size for path in files)
    bounded(function, *args, memory=max(MEMORY, 10 * size), seconds=SECONDS + size // BYTES_PER_SECOND,
            files=LARGEST_COPY)  # fmt: skip


def prepare(folder: str, config: str | None, cache: str, copy: str) -> bytes:
    """Write the cached copy of a folder. This function runs in the child process."""
    datasets.load_dataset_builder(folder, config, cache_dir=cache).download_and_prepare(copy)
    return b""


def read_arrow(path: str, most: int) -> bytes:
    """Read an Arrow file or stream. Raise an error if it is damaged or expands to more than `most` bytes."""
    unpacked = 0
    with pa.memory_map(path) as file:
        try:
            batches: Iterable[pa.RecordBatch] = pa.ipc.open_stream(file)
        except pa.ArrowInvalid:
            reader = pa.ipc.open_file(file)
            batches = map(reader.get_batch, range(reader.num_record_batches))
        for batch in batches:
            batch.validate(full=True)
            if (unpacked := unpacked + batch.nbytes) > most:
                raise UserError(f"it unpacks to more than {most:,} bytes")
    return b""
