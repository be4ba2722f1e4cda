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
from saliency_bench.errors import UserError, one_line
from saliency_bench.metric import load_metric
from saliency_bench.results import records
from saliency_bench.results.cell import (
    CellResult,
    Count,
    Hash,
    Interval,
    StrictModel,
    Text,
    as_json,
    bounds,
    field_line,
)
from saliency_bench.results.identity import Identity
from saliency_bench.results.intervals import check_range, interval, is_bounded
from saliency_bench.results.manifest import read_manifest
from saliency_bench.results.public_names import public_maps, public_name, public_spec, recorded_name
from saliency_bench.results.ranking import aggregate_of, aggregated, compare
from saliency_bench.results.run_folder import RunData, Scores, read_run
from saliency_bench.target import TargetRange
from saliency_bench.utils.files import check_regular, read_bytes, write_json
from saliency_bench.utils.hashing import hash_of

FORMAT = 3
LICENSE: Literal["cc-by-4.0"] = "cc-by-4.0"  # of all results: numbers, records and provenance
RESULT, RECORDS = "result.json", "records.parquet"
TEXTS = [field.name for field in records.SCHEMA if field.type == pa.string()]  # few different ones, but for ids
LARGEST = 20_000_000  # bytes of a result.json
LONGEST = 2000  # characters of a note

Name = Annotated[str, StringConstraints(max_length=100, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]


class Dataset(StrictModel):
    """repo, revision: the repository and commit of the Hub that it was loaded from; null where it was not.

    chosen_by: another classifier than the model, by which the images were chosen; null where there is none.
    """

    id: Text
    title: Text | None = None
    repo: Text | None = None
    revision: Text | None = None
    split: Text
    fingerprint: Hash
    samples: Count
    used: Count
    classes: Count
    chosen_by: Text | None = None


class Model(StrictModel):
    """repo, revision: as of a dataset; a model of torchvision has the name of its weights as revision."""

    id: Text
    repo: Text | None = None
    revision: Text | None
    digest: Hash
    geometry: Text
    classes: Count | None = None
    activation: Literal["softmax", "sigmoid"] = "softmax"
    activation_assumed: bool = False
    accuracy: Interval
    accuracy_kind: Text = "accuracy"
    top5: Interval | None = None
    no_accuracy: Text | None = None


def ids_under(cell: CellResult, setting: Identity) -> list[str]:
    """The ids that this explainer and metric can have under these settings."""
    explainer = cell.explainer, json.dumps(cell.explainer_options, sort_keys=True), cell.explainer_version
    metric = cell.metric, json.dumps(cell.metric_options, sort_keys=True), cell.metric_version
    return setting.cell_ids(explainer, metric, cell.asked_for)


class Provenance(BaseModel):
    """Versions and hardware."""

    model_config = ConfigDict(extra="allow", strict=True)

    saliency_bench: Text
    python: Text
    libraries: dict[str, Text]
    device: Text


class Result(StrictModel):
    """All cells that one submitter publishes of one run, under `license`."""

    format: Literal[3] = 3
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
    """A result with its records, in memory; `where` names it in messages."""

    result: Result
    records: pa.Table
    where: str

    def write(self, root: Path) -> list[Path]:
        """`root`/DATASET/MODEL/SUBMITTER/{result.json, records.parquet}."""
        folder = root / self.result.folder
        write_json(folder / RESULT, self.result.model_dump(mode="json"))
        pieces = (pa.Table.from_batches([batch]) for batch in self.records.to_batches(max_chunksize=records.ROWS))
        records.concat(pieces, folder / RECORDS, records.SCHEMA)
        return [folder / RESULT, folder / RECORDS]

    def only(self, cells: set[str]) -> "Submission":
        """Some cells alone, ranked anew among themselves."""
        rows = self.records.filter(pc.is_in(self.records["cell_id"], pa.array(sorted(cells))))
        result = self.result.only(cells)
        scores = Scores.in_table(rows)
        _, standings = compare(result.cells, scores.values, scores.clusters, result.setting.seed)
        ranked = [cell.model_copy(update=standings[cell.cell_id].as_dict()) for cell in result.cells]
        return Submission(result.model_copy(update={"cells": ranked}), rows, self.where)

    @cached_property
    def data(self) -> RunData:
        """As a run, to be compared with others."""
        scores = Scores.in_table(self.records)
        return RunData(Path(self.where), self.result.cells, scores.ids, scores.groups, scores.values)


def of_run(folder: str | Path, submitter: str, note: str = "") -> Submission:
    """The results of a finished run, without the folders of this machine (`results.public_names`).

    Raises: UserError for a folder that holds no finished run, or one whose files contradict each other.
    """
    folder = Path(folder)
    run = read_run(folder)
    summary = run.summary
    dataset, model = summary["dataset"], summary["model"]
    manifest = read_manifest(folder)
    called = {"dataset": dataset["id"], "model": public_name(model["id"], model.get("repo") is None)}
    public = public_spec(manifest.spec, **{kind: _pinned(summary[kind], called[kind]) for kind in called})
    maps = {explainer: public_maps(entry) for explainer, entry in manifest.maps.items()}
    content = {
        "submitter": submitter,
        "note": note,
        "dataset": dataset | {"id": called["dataset"]},
        "license": LICENSE,
        "model": model | {"id": called["model"]},
        "target": summary["target"],
        "setting": manifest.identity.model_dump(mode="json"),
        "cells": as_json(run.cells),
        "command": manifest.model_copy(update={"spec": public, "maps": maps}).commands(run.cells),
        "provenance": summary["provenance"],
    }
    result = _validated(json.dumps(content), folder / "summary.json")
    table = pq.read_table(folder / RECORDS, read_dictionary=TEXTS).replace_schema_metadata(None).unify_dictionaries()
    check_records(result, table, folder / RECORDS)
    return Submission(result, table, str(folder))


def _pinned(loaded: dict, name: str) -> str:
    """What loads the same again: of the Hub the very commit."""
    return f"{loaded['repo']}@{loaded['revision']}" if loaded.get("repo") else name


def read_result(path: Path) -> Result:
    """Raises: UserError that names file and field for anything that does not fit the schema."""
    try:
        text = read_bytes(path, LARGEST).decode()
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {error}") from error
    return _validated(text, path)


def _validated(text: str, path: Path) -> Result:
    try:
        return Result.model_validate_json(text)
    except ValidationError as error:
        raise UserError(f"{path}: {field_line(error)}") from error


def read_submission(folder: str | Path, where: str = "") -> Submission:
    """where: its name in messages. Raises: UserError that names file and field."""
    path = Path(folder) / RECORDS
    result = read_result(Path(folder) / RESULT)
    table = _read_records(path, sum(1 + len(cell.parts) for cell in result.cells) * result.dataset.used)
    check_records(result, table, path)
    return Submission(result, table, where or str(folder))


def _read_records(path: Path, most: int) -> pa.Table:
    """Checked before they are decoded: a small file can hold one long text a million times."""
    try:
        check_regular(path)
        if (rows := pq.read_metadata(path).num_rows) > most:
            raise UserError(f"{path} has {rows:,} rows, more than its cells can have ({most:,})")
        _check_columns(pq.read_schema(path), path)
        table = pq.read_table(path, read_dictionary=TEXTS).unify_dictionaries()
        for name in TEXTS:
            for chunk in table[name].chunks[:1]:
                if (pc.max(pc.binary_length(chunk.dictionary)).as_py() or 0) > LONGEST:
                    raise UserError(f"{path}: column {name} holds a text of more than {LONGEST:,} bytes")
        return table.replace_schema_metadata(None).cast(records.SCHEMA)
    except UserError:
        raise
    except (pa.ArrowException, OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {one_line(error)}") from error


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
        raise UserError(f"{path}: image_id occurs twice in a cell")
    if strange := set(table["cell_id"].unique().to_pylist()) - {cell.cell_id for cell in result.cells}:
        raise UserError(f"{path}: cell_id {min(strange)} is not in {RESULT}")
    scores = Scores.in_table(table)
    _check_names(result, table, path)
    _check_parts(result, table, path)
    for cell in result.cells:
        if (count := scores.count(cell.cell_id)) != cell.n:
            raise UserError(f"{path}: value has {count} numbers of cell {cell.cell_id}, but {RESULT} says n = {cell.n}")
        _check_metric(cell, result.setting, path)
    for part in (None, *dict.fromkeys(name for cell in result.cells for name in cell.parts)):
        _check_intervals(result, table, part, path)
    _check_ranks(result, scores, path)


def _check_names(result: Result, table: pa.Table, path: Path) -> None:
    """Whether the rows of a cell name the explainer, metric, dataset and model of that cell."""
    common = {
        "dataset": recorded_name(result.dataset.id, result.dataset.fingerprint),
        "split": result.dataset.split,
        "model": recorded_name(result.model.id, result.model.digest),
    }
    names = {cell.cell_id: {"explainer": cell.explainer, "metric": cell.metric, **common} for cell in result.cells}
    for row in table.group_by(["cell_id", *next(iter(names.values()))]).aggregate([]).to_pylist():
        for column, value in names[row["cell_id"]].items():
            if row[column] != value:
                raise UserError(f"{path}: {column} of cell {row['cell_id']} must be {value}, not {row[column]}")


def _check_parts(result: Result, table: pa.Table, path: Path) -> None:
    """Whether the parts of a cell's score have the names, counts and means that the cell gives them."""
    parts = table.filter(pc.is_valid(table["part"])).group_by(["cell_id", "part"])
    recorded = {
        (row["cell_id"], row["part"]): (row["value_count"], row["value_mean"])
        for row in parts.aggregate([("value", "count"), ("value", "mean")]).to_pylist()
    }
    stated = {(cell.cell_id, name): part for cell in result.cells for name, part in cell.parts.items()}
    if differing := sorted(recorded.keys() ^ stated.keys()):
        cell_id, name = differing[0]
        raise UserError(f"{path}: part {name} of cell {cell_id} is not in both {RESULT} and the records")
    for (cell_id, name), (count, mean) in recorded.items():
        part = stated[cell_id, name]
        means = [np.nan if value is None else value for value in (mean, part.value)]
        if count != part.n or not same(*means):
            raise UserError(
                f"{path}: part {name} of cell {cell_id} has {count} numbers of mean {mean}, but {RESULT} says n = "
                f"{part.n}, value = {part.value}"
            )


def _check_intervals(result: Result, table: pa.Table, part: str | None, path: Path) -> None:
    """Whether values, intervals and clusters of all cells, or of one part, are those of the records."""
    scores = Scores.in_table(table, part)
    codes = scores.clusters
    for cell in result.cells:
        if cell.aggregate and part is None:
            _check_aggregate(cell, result, table, path)
            continue
        stated = cell if part is None else cell.parts.get(part)
        if stated is None or not stated.n:
            continue
        what = f"cell {cell.cell_id}" if part is None else f"part {part} of cell {cell.cell_id}"
        own_scores = scores.values[cell.cell_id]
        check_range(own_scores, cell.limits, f"{path}: {what}")
        own = Interval.of(interval(own_scores, codes, cell.limits, result.setting.seed))
        median = float(np.nanmedian(own_scores)) if part is None and not is_bounded(cell.limits) else None
        _check_numbers(own, stated, what, path, {"median": (median, cell.median)} if part is None else {})


def _check_aggregate(cell: CellResult, result: Result, table: pa.Table, path: Path) -> None:
    """Whether the value of an aggregate and its interval are those of the parts in the records."""
    if aggregate_of(cell) is None or not cell.n:
        return
    rows = table.filter(pc.equal(table["cell_id"], cell.cell_id))
    names = [name for name in rows["part"].unique().to_pylist() if name is not None]
    parts = [Scores.in_table(rows, name) for name in names]
    columns = np.stack([one.values[cell.cell_id] for one in parts], axis=1)
    own = Interval.of(aggregated(cell, columns, parts[0].clusters, result.setting.seed))
    _check_numbers(own, cell, f"cell {cell.cell_id}", path, {"median": (None, cell.median)})


Numbers = tuple[float | None, float | None]


def _check_numbers(own: Interval, stated: Interval, what: str, path: Path, further: dict[str, Numbers]) -> None:
    numbers: dict[str, Numbers] = {
        name: (getattr(own, name), getattr(stated, name)) for name in ("value", "low", "high", "clusters")
    }
    for name, (found, told) in (numbers | further).items():
        if not same(*(np.nan if number is None else number for number in (found, told))):
            raise UserError(f"{path}: {name} of {what} comes to {_text(found)}, but {RESULT} says {_text(told)}")


def _check_ranks(result: Result, scores: Scores, path: Path) -> None:
    """Whether ranks are those that follow from the records."""
    nothing = np.full(len(scores.ids), np.nan)
    values = {cell.cell_id: scores.values.get(cell.cell_id, nothing) for cell in result.cells}
    _, standings = compare(result.cells, values, scores.clusters, result.setting.seed)
    for cell in result.cells:
        own = standings[cell.cell_id]
        for name, found in own.as_dict().items():
            told = getattr(cell, name)
            if found != told and not (name == "scored" and same(found, told)):
                raise UserError(f"{path}: {name} of cell {cell.cell_id} comes to {found}, but {RESULT} says {told}")


def _text(number: float | None) -> str:
    return "none" if number is None else f"{number:.6g}"


def _check_metric(cell: CellResult, setting: Identity, path: Path) -> None:
    if cell.metric not in registry.names("metrics"):
        return
    try:
        metric = load_metric(cell.metric, **cell.metric_options)
    except UserError as error:
        if isinstance(error.__cause__, ModuleNotFoundError):  # an optional library that is not installed
            return
        raise UserError(f"{path.with_name(RESULT)}: metric_options of cell {cell.cell_id}: {error}") from error
    if metric.version != cell.metric_version:
        return
    where = f"of cell {cell.cell_id} ({cell.metric_text})"
    if cell.higher_is_better != metric.higher_is_better:
        raise UserError(f"{path.with_name(RESULT)}: higher_is_better {where} must be {metric.higher_is_better}")
    if cell.aggregate != (is_aggregate := metric.aggregate is not None):
        raise UserError(f"{path.with_name(RESULT)}: aggregate {where} must be {is_aggregate}")
    ranges = [bounds(metric.limits(target)) for target in _target_ranges(setting)]
    if ranges and cell.range not in ranges:
        either = " or ".join(str(list(own)) for own in dict.fromkeys(ranges))
        raise UserError(
            f"{path.with_name(RESULT)}: range {where} must be {either}, not {list(cell.range)}; a run of an earlier "
            "version writes its summary anew when it is started again with its --out"
        )


def _target_ranges(setting: Identity) -> list[TargetRange]:
    """Those that the targets of a run may have; [] of a file with a sigmoid, which may ask about any number of classes.

    A file holds single classes and groups, or contrasts.
    """
    if setting.target_range is not None:
        return [setting.target_range]
    return [TargetRange.of_classes(1, minus) for minus in (0, 1)] if setting.activation == "softmax" else []


def _slug(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._]+", "-", name).strip("-.") or "unnamed"
