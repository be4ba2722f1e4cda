"""Checks of tables from strangers, before `datasets` reads them in this process.

Headers of Parquet files tell what they unpack to. Any other table is read once in a child process of bounded memory and
time, because deep JSON ends the process that reads it, and 200 kB of JSON or Arrow can take hours or gigabytes.
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
BYTES_PER_SECOND = 2**20  # a large table may be read for longer, if at least so fast
LARGEST_COPY = 2**40  # bytes of a file that `datasets` writes


def check_tables(files: Iterable[Path], name: str) -> None:
    """Raise UserError for a Parquet file that unpacks to more than is read, or an Arrow file that cannot be read."""
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
    """Let a child write the copy that `datasets` keeps of a folder, unless it exists or all tables are Parquet files.

    Raises:
        UserError: The child ended, or took too much time or memory. The caller meets all other errors again.
    """
    tables = [path for path in files if path.suffix.lower() in TABLES and path.suffix.lower() != PARQUET]
    if not tables or copy.exists():
        return
    try:
        _in_child(prepare, tables, str(folder), config, str(cache), str(copy))
    except ReaderDiedError as error:
        raise UserError(f"the tables of {folder} cannot be read: {one_line(error)}") from error
    except UserError:
        pass
    finally:
        shutil.rmtree(f"{copy}.incomplete", ignore_errors=True)


def check_downloads(builder: DatasetBuilder, folder: Path, config: str | None, name: str) -> None:
    """Make a builder check the tables that it downloads to `folder` before it reads them."""
    split = builder._split_generators

    def checked(manager: DownloadManager, *args: Any, **options: Any) -> Any:
        urls = [url for files in (builder.config.data_files or {}).values() for url in files]
        files = list(map(Path, manager.download([url for url in urls if Path(url).suffix.lower() in TABLES])))
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
    """Write the copy that `datasets` keeps of a folder."""
    datasets.load_dataset_builder(folder, config, cache_dir=cache).download_and_prepare(copy)
    return b""


def read_arrow(path: str, most: int) -> bytes:
    """Read an Arrow file or stream, and raise UserError if it unpacks to more than `most` bytes, or is damaged."""
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
