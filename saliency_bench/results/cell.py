"""A cell: one explainer scored by one metric. What is planned is a `CellKey`, what comes out a `CellResult`.

Both are flat in JSON: run.json holds keys, summary.json and submissions hold results. Submissions come from strangers,
so every field is checked when it is read.
"""

import json
from collections.abc import Iterable
from typing import Annotated, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    StringConstraints,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from saliency_bench.errors import UserError

Text = Annotated[str, StringConstraints(min_length=1, max_length=2000, pattern=r"^[^\x00-\x1f\x7f]*$")]
Hash = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{16,64}$")]
Count = Annotated[int, Field(ge=0)]


class StrictModel(BaseModel):
    """No unknown fields, no conversion of types, no NaN or infinity."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class Interval(StrictModel):
    """A mean over `n` samples with its 95 % bootstrap interval; None where it is not defined."""

    value: float | None
    low: float | None
    high: float | None
    n: Count

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.low is not None and self.high is not None and self.low > self.high:
            raise ValueError(f"low ({self.low}) is above high ({self.high})")
        if self.n == 0 and self.value is not None:
            raise ValueError(f"value ({self.value}) of no samples")
        return self

    @property
    def ends(self) -> tuple[float, float] | None:
        """(low, high); None where a mean has no interval, as that of one sample."""
        return None if self.low is None or self.high is None else (self.low, self.high)


class PartResult(Interval):
    """One named part of a metric's score, such as an exposure or a transform."""


class ForwardPasses(StrictModel):
    """Images put through the classifier: to explain, and by the metric beyond what earlier metrics shared.

    Chunks are computed whole, so both count whole chunks, also where a limit cuts the last one.
    """

    explain: Count = 0
    metric: Count = 0


class CellKey(StrictModel):
    """What is planned: an explainer and a metric, each with its options and version.

    `*_text` is what people read: the name with the options that differ from their defaults. `explainer_id` names the
    folder of the explainer's chunks; equal explainers have equal ids in every run. `baseline`: whether the explainer
    ignores the network.
    """

    cell_id: Hash
    explainer_id: Hash
    explainer: Text
    explainer_options: dict[str, JsonValue]
    explainer_text: Text
    explainer_version: int | Text  # text: a hash of a function's code, or of precomputed maps
    baseline: bool
    metric: Text
    metric_options: dict[str, JsonValue]
    metric_text: Text
    metric_version: int
    higher_is_better: bool

    @property
    def metric_id(self) -> tuple[str, int]:
        """What the cells of one metric share within a run."""
        return self.metric_text, self.metric_version


class CellResult(Interval, CellKey):
    """What came out: the score with its interval, and what must be known about it.

    rank          1 + the number of explainers of the run that are significantly better; None where nothing is ranked
    parts         {name: its own mean and interval}; empty for a metric without parts
    left_out      {reason: samples without a score}
    flat          scores of constant maps
    marked        {reason: scores that stand but are counted for this reason of the metric's own}
    """

    rank: Annotated[int, Field(ge=1)] | None
    parts: dict[Text, PartResult] = {}
    left_out: dict[str, Count]
    flat: Count
    marked: dict[str, Count]
    forward_passes: ForwardPasses


CELLS = TypeAdapter(list[CellResult])


def read_cells(content: object) -> list[CellResult]:
    """The cells of a summary's JSON. Raises: UserError that names the field."""
    try:
        return CELLS.validate_json(json.dumps(content))
    except ValidationError as error:
        raise UserError(f"cells.{field_line(error)}") from error


def as_json(cells: Iterable[CellKey]) -> list[dict]:
    return [cell.model_dump(mode="json") for cell in cells]


def field_line(error: ValidationError) -> str:
    """The first field that does not fit the schema, and why."""
    first, *more = error.errors(include_url=False)
    field = ".".join(map(str, first["loc"]))
    message = " ".join(first["msg"].removeprefix("Value error, ").split())
    return (f"{field}: " if field else "") + message + (f" (and {len(more)} more)" if more else "")
