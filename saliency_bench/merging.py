"""Parts become one file: records.parquet and predictions.parquet, the same bytes however the parts came about."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from saliency_bench import records
from saliency_bench.chunks import prediction_part
from saliency_bench.summary import read_json
from saliency_bench.work import Work


def parts_of(folder: Path, chunks: int) -> list[Path]:
    """All parts of a run's first chunks, in the order of explainers in run.json, then chunks."""
    cells = read_json(folder / "run.json")["cells"].values()
    parts = [
        part
        for key in dict.fromkeys(cell["parts"] for cell in cells)
        for part in (folder / "parts" / key).glob("*.parquet")
    ]
    order = {key: position for position, key in enumerate(dict.fromkeys(cell["parts"] for cell in cells))}
    return sorted((p for p in parts if int(p.name[:6]) < chunks), key=lambda p: (order[p.parent.name], p.name))


def merge(work: Work, samples: int) -> None:
    """Parts to records.parquet and predictions.parquet, cut to the samples asked for (a chunk is computed whole)."""
    chunks = -(-samples // work.batch_size)
    in_last = samples - (chunks - 1) * work.batch_size

    def tables(parts: list[Path]) -> Iterator[pa.Table]:
        for part in parts:
            table = pq.read_table(part)
            if int(part.name[:6]) == chunks - 1:
                rows_per_cell = len(table) // len(records.notes_of(part).get("cells", [None]))
                table = table.filter(pa.array(np.arange(len(table)) % rows_per_cell < in_last))
            yield table

    predictions = [prediction_part(work, number) for number in range(chunks)]
    records.concat(tables(predictions), work.out / "predictions.parquet", records.PREDICTIONS)
    records.concat(tables(parts_of(work.out, chunks)), work.out / "records.parquet", records.SCHEMA)
