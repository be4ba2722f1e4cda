"""Format of published results: one folder per submission.

The files of a submission are checked when they are written and again when they are read.

    DATASET-FINGERPRINT/MODEL-DIGEST/SUBMITTER-CONTENT/result.json       settings, cells, provenance, note: `Result`
                                                       records.parquet   a row per cell and sample: `records.SCHEMA`

The name of the last folder contains the submitter's name and a hash of the cells, so two submitters never write the
same file. The id of a cell is a hash of everything that determines its score. `result.json` contains all of these
values, so a wrong id is detected. Reading a submission never executes code from it: the files are JSON and Parquet, and
they are checked against this schema.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

import pyarrow as pa
from pydantic import AfterValidator, ConfigDict, Field, StringConstraints, ValidationError, model_validator

from saliency_bench.board.published_maps import MOST_SHARDS
from saliency_bench.errors import UserError, one_line
from saliency_bench.read import records
from saliency_bench.read.cell import CellResult, Count, Hash, Interval, StrictModel, Text, field_line
from saliency_bench.read.identity import CellIds, Identity
from saliency_bench.read.network_answers import NetworkAnswers
from saliency_bench.read.public_names import refused_label
from saliency_bench.utils.files import parse_json, read_bytes
from saliency_bench.utils.hashing import hash_of

FORMAT = 3
LICENSE: Literal["cc-by-4.0"] = "cc-by-4.0"  # licence of all published numbers, records and provenance
RESULT, RECORDS = "result.json", "records.parquet"
SCHEMA = "schema.json"  # file that marks a results repository before the first submission
TEXTS = [field.name for field in records.SCHEMA if field.type == pa.string()]  # few distinct values, except ids
LARGEST = 8_000_000  # maximum size of result.json in bytes
LONGEST = 2000  # maximum length of a note in characters
LONGEST_TEXT = 10_000  # maximum length of any string in characters
MOST_CELLS = 2000
MOST_NAMES = 1000  # maximum number of names in a JSON object
MOST_VALUES = 500_000  # maximum number of values in a JSON file
MOST_ERRORS = 1000
MOST_SEED = 2**53  # largest integer that JSON, floats and tables represent exactly
# The format of `Classifier.arithmetic`.
PRECISION = re.compile(
    r"(fp32|tf32|bf16|fp16|[a-z0-9_]{4,20} weights)(, (tf32|bf16|fp16) operations)?(, channels last)?(, compiled)?"
)
SEVERAL_LINES = ("note", "command")


def _link(text: str) -> str:
    """Return a URL unchanged. Raise ValueError if the URL could mislead readers about its destination."""
    parts = urlsplit(text)
    is_plain = text.isascii() and text.isprintable() and not set(text) & set(" <>\"'`\\")
    if text and not (is_plain and parts.scheme == "https" and parts.hostname and "@" not in parts.netloc):
        raise ValueError("must be an https URL in ASCII and without a user name, for example https://example.org/code")
    return text


def _day(text: str) -> str:
    """Return a date unchanged. Raise ValueError if the date does not exist."""
    date.fromisoformat(text)
    return text


Day = Annotated[str, StringConstraints(pattern=r"^20[0-9]{2}-[01][0-9]-[0-3][0-9]$"), AfterValidator(_day)]
Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
Name = Annotated[str, StringConstraints(max_length=100, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]


class Dataset(StrictModel):
    """The dataset of a run.

    Attributes:
        repo: Hub repository of the dataset, or null.
        revision: Commit of that repository.
        fingerprint: Hash of the samples.
        samples: Number of samples in the split.
        used: Number of samples that the run used.
        chosen_by: Classifier that was used to select the images, if it is not the run's model.
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
    """The classifier of a run.

    Attributes:
        repo: Hub repository of the model, or null.
        revision: Commit of that repository, or the name of torchvision's weights.
        digest: Hash of the weights.
        geometry: Description of how images are resized and cropped.
        activation: Name of the function that converts logits into probabilities.
        activation_assumed: Whether the activation was assumed because the checkpoint does not specify it.
        accuracy: Accuracy on all samples of the dataset.
        accuracy_kind: Name of the measure that `accuracy` contains, such as "mean average precision".
        top5: Top-5 accuracy.
        no_accuracy: Reason why there is no accuracy.
        no_class: Number of images with a label that is not a class of the model. The accuracy excludes these images.
        classes_by_position: Whether the classes are assumed to be in the dataset's order, because the model has no
            class names.
    """

    id: Text
    repo: Text | None = None
    revision: Text | None
    digest: Hash
    geometry: Text
    classes: Count | None = None
    activation: Literal["softmax", "sigmoid", "binary"] = "softmax"
    activation_assumed: bool = False
    accuracy: Interval
    accuracy_kind: Text = "accuracy"
    top5: Interval | None = None
    no_accuracy: Text | None = None
    no_class: Count = 0
    classes_by_position: bool = False

    @model_validator(mode="after")
    def _shares(self) -> Self:
        """Raise ValueError for accuracies outside [0, 1]."""
        for name in ("accuracy", "top5"):
            stated = getattr(self, name)
            for end in ("value", "low", "high"):
                if stated is not None and not 0 <= (getattr(stated, end) or 0) <= 1:
                    raise ValueError(f"{name}.{end} is {getattr(stated, end)}, but must be between 0 and 1")
        return self


def ids_under(cell: CellResult, ids: CellIds) -> Iterator[str]:
    """Yield the possible ids of a cell with this explainer and this metric under the settings `ids`."""
    explainer = cell.explainer, json.dumps(cell.explainer_options, sort_keys=True), cell.explainer_version
    metric = cell.metric, json.dumps(cell.metric_options, sort_keys=True), cell.metric_version
    return ids.possible(explainer, metric, cell.asked_for)


class Provenance(StrictModel):
    """Versions and hardware with which a run was computed. Additional entries can contain any JSON data."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, Text | int | float | bool | None]

    saliency_bench: Text
    python: Text
    libraries: dict[str, Text]
    device: Text


class Result(StrictModel):
    """All cells of a run that a submitter publishes under `license`.

    A reviewer cannot check `note`, `link`, `ran`, `submitted`, `seconds`, `peak_memory`, `command` and `provenance`.

    Attributes:
        link: Link to the code or paper of the submitter's method.
        ran: Day on which the run started, according to the submitter's machine.
        submitted: Day of the submission, according to the submitter's machine.
        seconds: {`explainer_id`: run time in seconds}. If the run was resumed, only the time of its last call is
            included.
        peak_memory: Peak memory in bytes during that call: GPU memory if there is a GPU, otherwise memory of the
            process.
        target: Description of what the maps explain.
        setting: Everything that determines the scores, except the explainer and the metric.
        answers: The network's logits for fixed images, or null if they cannot be compared.
        maps: SHA-256 of each published map file (`published_maps`), in order.
    """

    format: Literal[3] = 3
    license: Literal["cc-by-4.0"]
    submitter: Name
    note: Annotated[str, StringConstraints(max_length=LONGEST)] = ""
    link: Annotated[str, StringConstraints(max_length=500), AfterValidator(_link)] = ""
    ran: Day | None = None
    submitted: Day | None = None
    seconds: dict[Hash, Annotated[float, Field(ge=0)]] = Field(default_factory=dict)
    peak_memory: Annotated[int, Field(ge=0)] | None = None
    dataset: Dataset
    model: Model
    target: Text
    setting: Identity
    answers: NetworkAnswers | None = None
    cells: Annotated[list[CellResult], Field(min_length=1, max_length=MOST_CELLS)]
    command: Annotated[str, StringConstraints(max_length=10_000)]
    provenance: Provenance
    maps: Annotated[list[Sha256], Field(max_length=MOST_SHARDS)] = Field(default_factory=list)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if not PRECISION.fullmatch(self.setting.precision):
            raise ValueError(f"setting.precision is {self.setting.precision}, which is not a valid precision")
        if abs(self.setting.seed) > MOST_SEED:
            raise ValueError(f"setting.seed is {self.setting.seed:.3g}, which is too large for a table")
        for field, value, setting in (
            ("dataset.fingerprint", self.dataset.fingerprint, self.setting.fingerprint),
            ("dataset.split", self.dataset.split, self.setting.split),
            ("model.digest", self.model.digest, self.setting.classifier),
        ):
            if value != setting:
                raise ValueError(f"{field} is {value}, but setting contains {setting}")
        ids = CellIds(self.setting)
        for index, cell in enumerate(self.cells):
            _check_labels(cell, index)
            if cell.cell_id not in ids_under(cell, ids):
                expected = next(ids_under(cell, ids))
                raise ValueError(f"cells.{index}.cell_id is {cell.cell_id}, but must be {expected} for these settings")
            if cell.n > self.dataset.used:
                raise ValueError(f"cells.{index}.n is {cell.n}, but dataset.used is {self.dataset.used}")
        if self.dataset.used > self.dataset.samples or self.model.accuracy.n > self.dataset.samples:
            raise ValueError(
                f"dataset.samples is {self.dataset.samples}, which is less than dataset.used or model.accuracy.n"
            )
        twice, times = Counter(cell.cell_id for cell in self.cells).most_common(1)[0]
        if times > 1:
            raise ValueError(f"cells contains the cell {twice} {times} times")
        return self

    @property
    def group(self) -> str:
        """The folder of all submissions for this dataset and model.

        Only the hashes in the folder's name identify it. The other words make the name readable.
        """
        dataset = f"{_slug(self.dataset.id)}-{_slug(self.dataset.split)}-{self.dataset.fingerprint[:8]}"
        return f"{dataset}/{_slug(self.model.id)}-{self.model.digest[:8]}"

    @property
    def folder(self) -> str:
        """The folder of this submission in its repository."""
        content = sorted((cell.cell_id, cell.value, cell.n) for cell in self.cells)
        return f"{self.group}/{self.submitter}-{hash_of(content)}"

    def only(self, cells: set[str]) -> "Result":
        """Return a copy of the result that contains only the cells with these ids."""
        return self.model_copy(update={"cells": [cell for cell in self.cells if cell.cell_id in cells]})


def _check_labels(cell: CellResult, index: int) -> None:
    """Raise ValueError if the name of a method or metric is unreadable or could be mistaken for a different name."""
    for kind, name, chosen in (
        ("explainer", cell.explainer, cell.explainer_options),
        ("metric", cell.metric, cell.metric_options),
    ):
        if why := refused_label(name, chosen):
            shown = name if len(name) <= 50 else f"{name[:50]}..."
            raise ValueError(f"cells.{index}.{kind} {shown!a} {why}")


def json_schema() -> dict:
    """Return the JSON schema of `result.json`."""
    return Result.model_json_schema() | {"title": f"A submission to saliency-bench, format {FORMAT}"}


def read_result(path: Path) -> Result:
    """Read a `result.json`.

    Raises:
        UserError: The file does not match the schema or is too large. The message names the file and the field.
    """
    try:
        text = read_bytes(path, LARGEST).decode()
        # Each value follows one of these characters, so their number is an upper bound on the number of values. It is
        # checked before parsing, which creates an object per value.
        if (values := sum(map(text.count, ",[{"))) > MOST_VALUES:
            raise ValueError(f"it contains {values:,} values, more than the limit of {MOST_VALUES:,}")
        check_texts(parse_json(text, unique=True))
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {one_line(error)}") from error
    return validated(text, path)


def validated(text: str, path: Path) -> Result:
    """Parse a result from JSON text. For invalid text, a UserError names the file and the field."""
    try:
        return Result.model_validate_json(text)
    except ValidationError as error:
        many = error.error_count() > MOST_ERRORS  # listing all errors would need too much memory
        why = f"{error.error_count():,} fields do not match the schema" if many else field_line(error)
        raise UserError(f"{path}: {why}") from error


def check_texts(content: object, place: str = "") -> None:
    """Check that all strings in JSON are printable, without terminal escapes or marks that reverse the text direction.

    Args:
        content: Parsed JSON.
        place: Path of the content within the JSON document, for messages.

    Raises:
        ValueError: A string is not printable or too long, or an object has too many names. The message contains the
            path.
    """
    if isinstance(content, str):
        lines = content.splitlines() if place in SEVERAL_LINES else [content]
        if len(content) > LONGEST_TEXT or not all(line.isprintable() for line in lines):
            why = "cannot be printed"
            if len(content) > LONGEST_TEXT:
                why = f"has {len(content):,} characters, more than the limit of {LONGEST_TEXT:,}"
            raise ValueError(f"the text of {place} {why}: {one_line(content, 50)}")
    elif isinstance(content, dict):
        if len(content) > MOST_NAMES:
            raise ValueError(f"{place or 'it'} has {len(content):,} names, more than the limit of {MOST_NAMES:,}")
        for key, value in content.items():
            check_texts(key, f"a name in {place or 'it'}")
            check_texts(value, f"{place}.{key}".strip("."))
    elif isinstance(content, list):
        for index, value in enumerate(content):
            check_texts(value, f"{place}.{index}")


def _slug(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._]+", "-", name).strip("-.") or "unnamed"
