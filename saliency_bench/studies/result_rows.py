"""Helpers for the results of studies on a run's maps: clusters, numbers in place of names, and table files."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from saliency_bench.errors import UserError
from saliency_bench.read.statistics.clusters import cluster_codes
from saliency_bench.studies.study import Study
from saliency_bench.utils.csv_text import csv_text
from saliency_bench.utils.files import write_with


def codes_of(study: Study, images: Sequence[str]) -> np.ndarray:
    """Return the cluster number of each image."""
    groups = study.configuration["groups"]
    return cluster_codes(images, [groups.get(image) for image in images])


def numbered(rows: Sequence[tuple]) -> list[tuple]:
    """Replace the pseudonym at the start of each row with a number. The rows are then sorted by their other values."""
    return [(str(number), *row) for number, row in enumerate(sorted((row[1:] for row in rows), key=str), 1)]


def write_rows(path: Path, header: Sequence[str], rows: Sequence[tuple]) -> int:
    """Write a table about people as CSV or Parquet. Only the owner of the file can read it. Return the number of rows.

    Raises:
        UserError: The suffix is not supported.
    """
    if (ending := path.suffix.lower()) not in (".csv", ".parquet"):
        raise UserError(f"{path} must end in .csv or .parquet")
    if ending == ".csv":
        texts = [[str(value).lower() if isinstance(value, bool) else value for value in row] for row in rows]
        write_with(
            path, lambda temporary: temporary.write_text(csv_text(header, texts), encoding="utf-8"), private=True
        )
    else:
        table = pa.table({name: [row[index] for row in rows] for index, name in enumerate(header)})
        write_with(path, lambda temporary: pq.write_table(table, temporary), private=True)
    return len(rows)
