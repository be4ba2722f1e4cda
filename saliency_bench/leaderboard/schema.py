"""Published results: one folder per submission, checked when it is written and again when it is read.

    DATASET-FINGERPRINT/MODEL-DIGEST/SUBMITTER-CONTENT/result.json       settings, cells, provenance, note: `Result`
                                                       records.parquet   a row per cell and sample: `records.SCHEMA`

The last folder is named after the submitter and a hash of the cells, so two submitters never write the same file. The
id of a cell is a hash of everything that determines its number, all of which `result.json` holds, so a wrong id is
detected. Nothing that is read here is executed: JSON and Parquet, checked against this schema.
"""

import json
import re
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, model_validator

from saliency_bench import registry
from saliency_bench.analysis.differences import same
from saliency_bench.errors import UserError
from saliency_bench.metric import load_metric
from saliency_bench.results import records
from saliency_bench.results.cell import CellResult, Count, Hash, Interval, StrictModel, Text, as_json, field_line
from saliency_bench.results.identity import Identity
from saliency_bench.results.manifest import read_manifest
from saliency_bench.results.public_names import public_command, public_name
from saliency_bench.results.run_folder import RunData, read_run, read_values
from saliency_bench.utils.files import write_json
from saliency_bench.utils.hashing import hash_of

FORMAT = 2
LICENSE: Literal["cc-by-4.0"] = "cc-by-4.0"  # of all results: numbers, records and provenance
RESULT, RECORDS = "result.json", "records.parquet"
LARGEST = 20_000_000  # bytes of a result.json
MOST_PARTS = 100  # of a score
LONGEST = 2000  # characters of a note

Name = Annotated[str, StringConstraints(max_length=100, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]


class Dataset(StrictModel):
    id: Text
    split: Text
    fingerprint: Hash
    samples: Count
    used: Count
    classes: Count


class Model(StrictModel):
    id: Text
    revision: Text | None
    digest: Hash
    geometry: Text
    accuracy: Interval


def ids_under(cell: CellResult, setting: Identity) -> list[str]:
    """The ids that this explainer and metric can have under these settings."""
    explainer = cell.explainer, json.dumps(cell.explainer_options, sort_keys=True), cell.explainer_version
    metric = cell.metric, json.dumps(cell.metric_options, sort_keys=True), cell.metric_version
    return setting.cell_ids(explainer, metric)


class Provenance(BaseModel):
    """Versions and hardware."""

    model_config = ConfigDict(extra="allow", strict=True)

    saliency_bench: Text
    python: Text
    libraries: dict[str, Text]
    device: Text


class Result(StrictModel):
    """All cells that one submitter publishes of one run, under `license`."""

    format: Literal[2] = 2
    license: Literal["cc-by-4.0"]
    submitter: Name
    note: Annotated[str, StringConstraints(max_length=LONGEST)] = ""
    dataset: Dataset
    model: Model
    target: Text
    setting: Identity
    cells: Annotated[list[CellResult], Field(min_length=1)]
    command: Annotated[str, StringConstraints(max_length=10_000)]
    provenance: Provenance

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        for field, value, setting in (
            ("dataset.fingerprint", self.dataset.fingerprint, self.setting.fingerprint),
            ("dataset.split", self.dataset.split, self.setting.split),
            ("model.digest", self.model.digest, self.setting.classifier),
        ):
            if value != setting:
                raise ValueError(f"{field} is {value}, but the settings say {setting}")
        for index, cell in enumerate(self.cells):
            if cell.cell_id not in (own := ids_under(cell, self.setting)):
                raise ValueError(f"cells.{index}.cell_id is {cell.cell_id}, but its settings make it {own[0]}")
            if cell.n > self.dataset.used:
                raise ValueError(f"cells.{index}.n is {cell.n}, but dataset.used is {self.dataset.used}")
        twice, times = Counter(cell.cell_id for cell in self.cells).most_common(1)[0]
        if times > 1:
            raise ValueError(f"cells holds {twice} {times} times")
        return self

    @property
    def group(self) -> str:
        """The folder of all submissions for this dataset and model. Names are for people, the hashes decide."""
        dataset = f"{_slug(self.dataset.id)}-{_slug(self.dataset.split)}-{self.dataset.fingerprint[:8]}"
        return f"{dataset}/{_slug(self.model.id)}-{self.model.digest[:8]}"

    @property
    def folder(self) -> str:
        content = sorted((cell.cell_id, cell.value, cell.n) for cell in self.cells)
        return f"{self.group}/{self.submitter}-{hash_of(content)}"

    def only(self, cells: set[str]) -> "Result":
        return self.model_copy(update={"cells": [cell for cell in self.cells if cell.cell_id in cells]})


def json_schema() -> dict:
    """JSON schema of `result.json`."""
    return Result.model_json_schema() | {"title": f"A submission to saliency-bench, format {FORMAT}"}


@dataclass(frozen=True)
class Submission:
    """A result with its records; `where` names it in messages."""

    result: Result
    records: pa.Table
    where: str

    def write(self, root: Path) -> list[Path]:
        """`root`/DATASET/MODEL/SUBMITTER/{result.json, records.parquet}."""
        folder = root / self.result.folder
        write_json(folder / RESULT, self.result.model_dump(mode="json"))
        records.write(folder / RECORDS, self.records, records.SCHEMA)
        return [folder / RESULT, folder / RECORDS]

    def only(self, cells: set[str]) -> "Submission":
        rows = self.records.filter(pc.is_in(self.records["cell_id"], pa.array(sorted(cells))))
        return Submission(self.result.only(cells), rows, self.where)

    @cached_property
    def data(self) -> RunData:
        """As a run, to be compared with others."""
        ids, values, _ = read_values(self.records)
        return RunData(Path(self.where), self.result.cells, ids, values)


def of_run(folder: str | Path, submitter: str, note: str = "") -> Submission:
    """The results of a finished run, with the names of local folders cut to their last part.

    Raises: UserError for a folder that holds no finished run, or one whose files contradict each other.
    """
    folder = Path(folder)
    run = read_run(folder)
    summary = run.summary
    dataset, model = summary["dataset"], summary["model"]
    local = model["revision"] is None  # a checkpoint of the Hub has one
    names = {dataset["id"]: public_name(dataset["id"]), model["id"]: public_name(model["id"], local)}
    content = {
        "submitter": submitter,
        "note": note,
        "dataset": dataset | {"id": names[dataset["id"]]},
        "license": LICENSE,
        "model": model | {"id": names[model["id"]]},
        "target": summary["target"],
        "setting": read_manifest(folder).identity.model_dump(mode="json"),
        "cells": as_json(run.cells),
        "command": public_command(
            summary["command"], {"--dataset": names[dataset["id"]], "--model": names[model["id"]]}
        ),
        "provenance": summary["provenance"],
    }
    result = _validated(json.dumps(content), folder / "summary.json")
    table = pq.read_table(folder / RECORDS).replace_schema_metadata(None)
    for column, name in (("dataset", dataset["id"]), ("model", model["id"])):
        index = table.schema.get_field_index(column)
        table = table.set_column(index, column, pa.array([names[name]] * len(table), pa.string()))
    check_records(result, table, folder / RECORDS)
    return Submission(result, table.cast(records.SCHEMA), str(folder))


def read_result(path: Path) -> Result:
    """Raises: UserError that names file and field for anything that does not fit the schema."""
    try:
        if path.stat().st_size > LARGEST:
            raise UserError(f"{path} has {path.stat().st_size:,} bytes; a result has at most {LARGEST:,}")
        return _validated(path.read_text(encoding="utf-8"), path)
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read: {error}") from error


def _validated(text: str, path: Path) -> Result:
    try:
        return Result.model_validate_json(text)
    except ValidationError as error:
        raise UserError(f"{path}: {field_line(error)}") from error


def read_submission(folder: str | Path, where: str = "") -> Submission:
    """where: its name in messages. Raises: UserError that names file and field."""
    path = Path(folder) / RECORDS
    result = read_result(Path(folder) / RESULT)
    table = _read_records(path, len(result.cells) * result.dataset.used * (1 + MOST_PARTS))
    check_records(result, table, path)
    return Submission(result, table, where or str(folder))


def _read_records(path: Path, most: int) -> pa.Table:
    """Checked before they are decoded: a small file can hold one long text a million times."""
    try:
        if (rows := pq.read_metadata(path).num_rows) > most:
            raise UserError(f"{path} has {rows:,} rows, more than its cells can have ({most:,})")
        _check_columns(pq.read_schema(path), path)
        texts = [field.name for field in records.SCHEMA if field.type == pa.string()]
        table = pq.read_table(path, read_dictionary=texts).unify_dictionaries()
        for name in texts:
            for chunk in table[name].chunks[:1]:
                if (pc.max(pc.binary_length(chunk.dictionary)).as_py() or 0) > LONGEST:
                    raise UserError(f"{path}: column {name} holds a text of more than {LONGEST:,} bytes")
        return table.replace_schema_metadata(None).cast(records.SCHEMA)
    except (pa.ArrowException, OSError) as error:
        raise UserError(f"{path} cannot be read: {' '.join(str(error).split())}") from error


def _check_columns(schema: pa.Schema, path: Path) -> None:
    for field in records.SCHEMA:
        if field.name not in schema.names or schema.field(field.name).type != field.type:
            raise UserError(f"{path}: column {field.name} must be {field.type}")
    if extra := set(schema.names) - set(records.SCHEMA.names):
        raise UserError(f"{path}: unknown column {min(extra)}")


def check_records(result: Result, table: pa.Table, path: Path) -> None:
    """Whether the records are those of the result: cells, counts, and values where the metric is known here.

    Raises: UserError that names file and column.
    """
    for column in ("cell_id", "image_id"):
        if table[column].null_count:
            raise UserError(f"{path}: {column} must not be null")
    if not np.isfinite(table["value"].drop_null().to_numpy()).all():
        raise UserError(f"{path}: value must be finite, or null with its reason")
    pairs = table.select(["cell_id", "image_id", "part"]).group_by(["cell_id", "image_id", "part"]).aggregate([])
    if len(pairs) < len(table):
        raise UserError(f"{path}: image_id comes twice in a cell")
    _, values, counts = read_values(table)
    if strange := set(values) - {cell.cell_id for cell in result.cells}:
        raise UserError(f"{path}: cell_id {min(strange)} is not in {RESULT}")
    _check_names(result, table, path)
    for cell in result.cells:
        if counts.get(cell.cell_id, 0) != cell.n:
            count = counts.get(cell.cell_id, 0)
            raise UserError(f"{path}: value has {count} numbers of cell {cell.cell_id}, but {RESULT} says n = {cell.n}")
        _check_value(cell, values.get(cell.cell_id, np.empty(0)), path)


def _check_names(result: Result, table: pa.Table, path: Path) -> None:
    """Whether the rows of a cell name the explainer, metric, dataset and model of that cell."""
    common = {"dataset": result.dataset.id, "split": result.dataset.split, "model": result.model.id}
    names = {cell.cell_id: {"explainer": cell.explainer, "metric": cell.metric, **common} for cell in result.cells}
    for row in table.group_by(["cell_id", *next(iter(names.values()))]).aggregate([]).to_pylist():
        for column, value in names[row["cell_id"]].items():
            if row[column] != value:
                raise UserError(f"{path}: {column} of cell {row['cell_id']} must be {value}, not {row[column]}")


def _check_value(cell: CellResult, values: np.ndarray, path: Path) -> None:
    scores = values[np.isfinite(values)]
    if cell.value is None or cell.metric not in registry.names("metrics"):
        return
    try:
        metric = load_metric(cell.metric, **cell.metric_options)
    except UserError as error:
        if isinstance(error.__cause__, ModuleNotFoundError):  # an optional library that is not installed
            return
        raise UserError(f"{path.with_name(RESULT)}: metric_options of cell {cell.cell_id}: {error}") from error
    if metric.version != cell.metric_version:
        return
    if not same(own := float(scores.mean()), cell.value):
        raise UserError(f"{path}: value of cell {cell.cell_id} comes to {own:.6g}, but {RESULT} says {cell.value:.6g}")


def _slug(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._]+", "-", name).strip("-.") or "unnamed"
