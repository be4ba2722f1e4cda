"""Write rows to Parquet shards for `datasets.load_dataset`, with constant memory."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from datasets import Features

SHARD_BYTES = 500_000_000
ROW_GROUP = 100  # rows in memory at a time; the Hub's viewer also loads this number at a time


class Shards:
    """Writes one split to `data/SPLIT-00000-of-0000N.parquet`, with about `SHARD_BYTES` per shard."""

    def __init__(self, folder: Path, split: str, features: Features):
        self.folder, self.split, self.features = folder, split, features
        self.rows: list[dict] = []
        self.parts: list[Path] = []
        self.writer: pq.ParquetWriter | None = None
        self.part_bytes = self.num_bytes = self.num_examples = 0

    def add(self, row: dict) -> None:
        """Add a row that was encoded by `features.encode_example`."""
        self.rows.append(row)
        if len(self.rows) == ROW_GROUP:
            self._flush()

    def close(self) -> list[Path]:
        """Write the remaining rows, rename the shards to their final names, and return them."""
        if self.rows:
            self._flush()
        self.abandon()
        total = len(self.parts)
        return [
            part.rename(self.folder / f"{self.split}-{index:05d}-of-{total:05d}.parquet")
            for index, part in enumerate(self.parts)
        ]

    def abandon(self) -> None:
        """Close the current file. The split stays incomplete."""
        if self.writer:
            self.writer.close()
            self.writer = None

    def _flush(self) -> None:
        table = pa.Table.from_pylist(self.rows, schema=self.features.arrow_schema)
        self._open().write_table(table)
        self.num_examples += len(self.rows)
        self.num_bytes += table.nbytes
        self.part_bytes += table.nbytes
        self.rows = []
        if self.part_bytes >= SHARD_BYTES:
            self.abandon()

    def _open(self) -> pq.ParquetWriter:
        if self.writer is None:
            self.parts.append(self.folder / f"{self.split}-{len(self.parts):05d}.part")
            self.writer = pq.ParquetWriter(self.parts[-1], self.features.arrow_schema, compression="zstd")
            self.part_bytes = 0
        return self.writer
