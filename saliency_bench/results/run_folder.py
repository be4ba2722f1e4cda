"""A finished run read back from its folder, every file checked."""

import json
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from saliency_bench.errors import UserError
from saliency_bench.results.cell import CellKey, CellResult, Interval, as_json, read_cells
from saliency_bench.results.summary import FORMAT

NEEDED = {"dataset", "model", "masks", "target", "cells", "command", "provenance", "faults", "halved_chunks"}
SCORES = ["cell_id", "image_id", "part", "value"]
PICTURES = ("ids", "kinds", "images", "masks")  # of examples.npz, beside a thumbnail per explainer
RESUME = "start the run again to complete it"


@dataclass(frozen=True)
class Row:
    """An explainer with its options: a row of tables and plots. `name`: `text`, with the version where two share it."""

    explainer_id: str
    text: str
    name: str
    baseline: bool


@dataclass(frozen=True)
class Column:
    """A metric with its options: a column of tables, a plot of its own."""

    metric_id: tuple[str, int]
    name: str
    higher_is_better: bool

    @property
    def arrow(self) -> str:
        return "↑" if self.higher_is_better else "↓"

    @property
    def direction(self) -> str:
        return "higher is better" if self.higher_is_better else "lower is better"


@dataclass(frozen=True)
class RunData:
    """A finished run.

    values      {cell id: one number per entry of `ids`, NaN for what was left out}
    summary     summary.json without its cells
    timings     timings.json
    examples    the arrays of examples.npz
    samples     {image id: label, prediction and mask} of the examples
    explained   {cell id: samples explained}, if not `samples_explained` for all, as in merged runs
    """

    folder: Path
    cells: list[CellResult]
    ids: list[str]
    values: dict[str, np.ndarray]
    summary: dict = field(default_factory=dict)
    timings: dict = field(default_factory=dict)
    examples: dict[str, np.ndarray] = field(default_factory=dict)
    samples: dict[str, dict] = field(default_factory=dict)
    explained: dict[str, int] = field(default_factory=dict)

    def as_json(self) -> dict:
        """summary.json."""
        return self.summary | {"cells": as_json(self.cells)}

    @cached_property
    def position(self) -> dict[str, int]:
        return {image_id: index for index, image_id in enumerate(self.ids)}

    @cached_property
    def cell_ids(self) -> frozenset[str]:
        return frozenset(cell.cell_id for cell in self.cells)

    @cached_property
    def accuracy(self) -> Interval:
        return Interval.model_validate(self.summary["model"]["accuracy"])

    @property
    def samples_explained(self) -> int:
        """Chunks are computed whole, also the last."""
        dataset, size = self.summary["dataset"], self.summary["batch_size"]
        return min(-(-dataset["used"] // size) * size, dataset["samples"])

    @cached_property
    def rows(self) -> list[Row]:
        """In the order of the run, baselines last."""
        names = _names(self.cells, lambda cell: (cell.explainer_text, cell.explainer_version, cell.explainer_id))
        rows = {
            cell.explainer_id: Row(cell.explainer_id, cell.explainer_text, names[cell.explainer_id], cell.baseline)
            for cell in self.cells
        }
        return sorted(rows.values(), key=lambda row: row.baseline)

    @cached_property
    def columns(self) -> list[Column]:
        names = _names(self.cells, lambda cell: (cell.metric_text, cell.metric_version, cell.metric_id))
        columns = {cell.metric_id: Column(cell.metric_id, names[cell.metric_id], cell.higher_is_better)
                   for cell in self.cells}  # fmt: skip
        return list(columns.values())

    @cached_property
    def _by_ids(self) -> dict[tuple, CellResult]:
        return {(cell.explainer_id, cell.metric_id): cell for cell in self.cells}

    def cell(self, row: Row, column: Column) -> CellResult | None:
        return self._by_ids.get((row.explainer_id, column.metric_id))

    def cells_of_row(self, row: Row) -> list[CellResult]:
        return [cell for column in self.columns if (cell := self.cell(row, column))]

    def cells_of_column(self, column: Column) -> list[tuple[Row, CellResult]]:
        return [(row, cell) for row in self.rows if (cell := self.cell(row, column))]


def _names(cells: list[CellResult], described: Callable[[CellKey], tuple]) -> dict:
    """{id: text}, with the version where two ids share a text. `described`: (text, version, id) of a cell."""
    ids: dict[str, set] = {}
    for text, _, key in map(described, cells):
        ids.setdefault(text, set()).add(key)
    return {
        key: text + (f" (version {version})" if len(ids[text]) > 1 else "")
        for text, version, key in map(described, cells)
    }


def read_run(folder: Path) -> RunData:
    """Raises: UserError naming a folder that holds no finished run, or the file in it that cannot be read."""
    summary, cells = _summary(folder)
    try:
        scores = _table(folder / "records.parquet", SCORES, coded=SCORES[:2])
        examples = _examples(folder / "examples.npz")
        samples = _samples(folder, list(examples.get("ids", [])))
        timings = _json(folder / "timings.json") if (folder / "timings.json").exists() else {}
    except FileNotFoundError as error:
        raise UserError(f"{folder} has no {Path(error.filename).name}; {RESUME}") from error
    ids, values, counts = read_values(scores)
    for cell in cells:
        if counts.get(cell.cell_id, 0) != cell.n or cell.cell_id not in values:
            raise UserError(
                f"records.parquet of {folder} has {counts.get(cell.cell_id, 0)} scores of {cell.explainer_text} by "
                f"{cell.metric_text}, but summary.json {cell.n}; {RESUME}"
            )
    return RunData(folder, cells, ids, values, summary, timings, examples, samples)


def _summary(folder: Path) -> tuple[dict, list[CellResult]]:
    """(summary.json without its cells, the cells)"""
    path = folder / "summary.json"
    if not path.is_file():
        raise UserError(f"{folder} is not the folder of a finished run (no summary.json); give the --out of a run")
    summary = _json(path)
    if "format" in summary and summary["format"] != FORMAT:
        raise UserError(
            f"{path} has format {summary['format']}, this version of saliency-bench reads format {FORMAT}; "
            "make the run again with another --out"
        )
    if (NEEDED | {"format"}) - set(summary) or not summary["cells"]:
        raise UserError(f"{path} is not the summary of a run of saliency-bench")
    try:
        return summary, read_cells(summary.pop("cells"))
    except UserError as error:
        raise _damaged(path, error) from error


def _json(path: Path) -> dict:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise _damaged(path, error) from error
    if not isinstance(content, dict):
        raise _damaged(path, ValueError("not a JSON object"))
    return content


def _damaged(path: Path, error: Exception) -> UserError:
    what = str(error).strip() or type(error).__name__
    return UserError(f"{path} is damaged ({what}); {RESUME}")


def _table(path: Path, columns: list[str], coded: list[str] | None = None) -> pa.Table:
    try:
        return pq.read_table(path, columns=columns, read_dictionary=coded).unify_dictionaries()
    except (pa.ArrowException, OSError, KeyError) as error:
        if isinstance(error, FileNotFoundError):
            raise FileNotFoundError(2, "no such file", str(path)) from error
        raise _damaged(path, error) from error


def read_values(table: pa.Table) -> tuple[list[str], dict[str, np.ndarray], dict[str, int]]:
    """Of records, parts aside: (image ids, {cell id: a score per image id or NaN}, {cell id: number of scores})."""
    table = table.filter(pc.is_null(table["part"]))
    cell_ids, cells = _coded(table["cell_id"])
    image_ids, images = _coded(table["image_id"])
    matrix = np.full((len(cell_ids), len(image_ids)), np.nan)
    scores = table["value"].to_numpy()  # null becomes NaN
    matrix[cells, images] = scores
    counts = np.bincount(cells[np.isfinite(scores)], minlength=len(cell_ids))
    return image_ids, dict(zip(cell_ids, matrix, strict=True)), dict(zip(cell_ids, counts.tolist(), strict=True))


def _coded(column: pa.ChunkedArray) -> tuple[list[str], np.ndarray]:
    """(distinct texts, the index of each row's text)."""
    if len(column) == 0:
        return [], np.empty(0, int)
    array = column.combine_chunks()
    array = array if pa.types.is_dictionary(array.type) else array.dictionary_encode()
    return array.dictionary.to_pylist(), array.indices.to_numpy()


def _examples(path: Path) -> dict[str, np.ndarray]:
    """The arrays of examples.npz; a run without a picture to show has none."""
    if not path.exists():
        return {}
    try:
        with np.load(path, allow_pickle=False) as stored:
            return {name: stored[name] for name in (*PICTURES, *stored.files)}
    except (BadZipFile, zlib.error, ValueError, KeyError, EOFError, OSError) as error:
        raise _damaged(path, error) from error


def _samples(folder: Path, wanted: list[str]) -> dict[str, dict]:
    """{image id: its label, prediction and mask} of the samples with pictures."""
    names = _table(folder / "records.parquet", ["image_id", "label", "prediction", "target"])
    numbers = _table(folder / "predictions.parquet", ["image_id", "confidence", "correct", "mask_share", "left_out"])
    samples: dict[str, dict] = {}
    for table in (names, numbers):
        for row in table.filter(pc.is_in(table["image_id"], pa.array(map(str, wanted), pa.string()))).to_pylist():
            samples.setdefault(row["image_id"], {}).update(row)
    return samples
