"""What a report is made of: the files of one run folder, read and checked."""

import json
import zlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from saliency_bench.errors import UserError
from saliency_bench.results.summary import FORMAT

NEEDED = {"dataset", "model", "masks", "target", "cells", "command", "provenance"}
SCORES = ["cell_id", "image_id", "part", "value"]
PICTURES = ("ids", "kinds", "images", "masks")  # of examples.npz, beside a thumbnail per explainer


@dataclass(frozen=True)
class Row:
    """An explainer with its options: a row of tables and plots. `key` is what its cells share.

    `name` tells two versions of one `text` apart.
    """

    key: str
    text: str
    name: str
    baseline: bool


@dataclass(frozen=True)
class Column:
    """A metric with its options: a column of tables, a plot of its own."""

    key: tuple
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
    """A finished run. `values[cell id]` has one number per entry of `ids`, NaN for what was left out."""

    folder: Path
    summary: dict
    timings: dict
    ids: list[str]
    values: dict[str, np.ndarray]
    examples: dict[str, np.ndarray]
    samples: dict[str, dict]

    @cached_property
    def position(self) -> dict[str, int]:
        return {image_id: index for index, image_id in enumerate(self.ids)}

    @cached_property
    def cell_ids(self) -> frozenset[str]:
        return frozenset(cell["cell_id"] for cell in self.summary["cells"])

    @property
    def computed(self) -> int:
        """Samples that were explained: chunks are computed whole, also the last."""
        dataset, size = self.summary["dataset"], self.summary["batch_size"]
        return min(-(-dataset["used"] // size) * size, dataset["samples"])

    @cached_property
    def rows(self) -> list[Row]:
        """In the order of the run, baselines last."""
        found = {
            cell["parts"]: Row(cell["parts"], cell["explainer_text"], name, is_baseline(cell))
            for cell, name in self._named("parts", "explainer")
        }
        return sorted(found.values(), key=lambda row: row.baseline)

    @cached_property
    def columns(self) -> list[Column]:
        found = {
            column_key(cell): Column(column_key(cell), name, cell["higher_is_better"])
            for cell, name in self._named("metric_version", "metric")
        }
        return list(found.values())

    def _named(self, key: str, kind: str) -> list[tuple[dict, str]]:
        """Each cell with the name of its explainer or metric, with the version where two versions share a name."""
        kinds: dict[str, set] = {}
        for cell in self.summary["cells"]:
            kinds.setdefault(cell[f"{kind}_text"], set()).add(cell[key])
        return [
            (cell, text + (f" (version {cell[f'{kind}_version']})" if len(kinds[text]) > 1 else ""))
            for cell in self.summary["cells"]
            for text in [cell[f"{kind}_text"]]
        ]

    @cached_property
    def _cells(self) -> dict[tuple, dict]:
        return {(cell["parts"], column_key(cell)): cell for cell in self.summary["cells"]}

    def cell(self, row: Row, column: Column) -> dict | None:
        return self._cells.get((row.key, column.key))


def is_baseline(cell: dict) -> bool:
    """Whether a cell's explainer looks at nothing but the picture's size or edges."""
    return cell.get("baseline", False)


def column_key(cell: dict) -> tuple:
    return cell["metric_text"], cell["metric_version"]


def read_run(folder: Path) -> RunData:
    """Raises: UserError naming a folder that holds no finished run, or the file in it that cannot be read."""
    summary = _summary(folder)
    try:
        scores = _table(folder / "records.parquet", SCORES, coded=SCORES[:2])
        examples = _examples(folder / "examples.npz")
        samples = _samples(folder, list(examples.get("ids", [])))
        timings = _json(folder / "timings.json") if (folder / "timings.json").exists() else {}
    except FileNotFoundError as error:
        raise UserError(f"{folder} has no {Path(error.filename).name}; start its run again, it goes on") from error
    ids, values, scored = read_values(scores)
    for cell in summary["cells"]:
        found = scored.get(cell["cell_id"], 0)
        if found != cell["n"] or cell["cell_id"] not in values:
            raise UserError(
                f"records.parquet of {folder} has {found} scores of {cell['explainer_text']} by {cell['metric_text']}, "
                f"but summary.json {cell['n']}; start its run again, it goes on"
            )
    return RunData(folder, summary, timings, ids, values, examples, samples)


def _summary(folder: Path) -> dict:
    path = folder / "summary.json"
    if not path.is_file():
        raise UserError(f"{folder} is not the folder of a finished run (no summary.json); give the --out of a run")
    summary = _json(path)
    if NEEDED - set(summary) or not summary["cells"]:
        raise UserError(f"{path} is not the summary of a run of saliency-bench")
    if summary.get("format") != FORMAT:
        raise UserError(f"{path} has format {summary.get('format')}, this version reads {FORMAT}; make the run again")
    return summary


def _json(path: Path) -> dict:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise _damaged(path, error) from error
    if not isinstance(content, dict):
        raise _damaged(path, ValueError("no JSON object"))
    return content


def _damaged(path: Path, error: Exception) -> UserError:
    what = str(error).strip() or type(error).__name__
    return UserError(f"{path} is damaged ({what}); start its run again, it goes on")


def _table(path: Path, columns: list[str], coded: list[str] | None = None) -> pa.Table:
    try:
        return pq.read_table(path, columns=columns, read_dictionary=coded).unify_dictionaries()
    except (pa.ArrowException, OSError, KeyError) as error:
        if isinstance(error, FileNotFoundError):
            raise FileNotFoundError(2, "no such file", str(path)) from error
        raise _damaged(path, error) from error


def read_values(table: pa.Table) -> tuple[list[str], dict[str, np.ndarray], dict[str, int]]:
    """Of records without parts: (image ids, {cell: a score per image id}, {cell: how many scores there are})."""
    table = table.filter(pc.is_null(table["part"]))
    cells, cell = _coded(table["cell_id"])
    ids, image = _coded(table["image_id"])
    matrix = np.full((len(cells), len(ids)), np.nan)
    scores = table["value"].to_numpy()  # null becomes NaN
    matrix[cell, image] = scores
    counts = np.bincount(cell[np.isfinite(scores)], minlength=len(cells))
    return ids, dict(zip(cells, matrix, strict=True)), dict(zip(cells, counts.tolist(), strict=True))


def _coded(column: pa.ChunkedArray) -> tuple[list[str], np.ndarray]:
    """(distinct texts, the number of each row's text)."""
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
    """{image id: what the classifier said of it} of the samples with pictures."""
    said = _table(folder / "predictions.parquet", ["image_id", "confidence", "correct", "mask_share", "left_out"])
    told = _table(folder / "records.parquet", ["image_id", "label", "prediction", "target"])
    found: dict[str, dict] = {}
    for table in (told, said):
        for row in table.filter(pc.is_in(table["image_id"], pa.array(map(str, wanted), pa.string()))).to_pylist():
            found.setdefault(row["image_id"], {}).update(row)
    return found
