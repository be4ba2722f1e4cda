"""Cells: one explainer scored by one metric. `CellKey` describes a planned cell, and `CellResult` its result.

Both are flat objects in JSON. run.json contains keys; summary.json and submissions contain results. Submissions come
from unknown authors, so every field is validated when it is read.
"""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from math import inf, isfinite, nan
from typing import Annotated, Self, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    Strict,
    StringConstraints,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from saliency_bench.errors import UserError
from saliency_bench.read.statistics.intervals import APPROXIMATE_BELOW, Estimate
from saliency_bench.registry import is_named
from saliency_bench.score_notes import PRECOMPUTED

Text = Annotated[str, StringConstraints(min_length=1, max_length=2000, pattern=r"^[^\x00-\x1f\x7f]*$")]
Line = Annotated[str, StringConstraints(max_length=2000, pattern=r"^[^\x00-\x1f\x7f]*$")]  # may be empty
Hash = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{16,64}$")]
Name = TypeVar("Name", str, tuple[str, int | str])
Model = TypeVar("Model", bound="StrictModel")
Key = TypeVar("Key", bound="CellKey")
Cell = TypeVar("Cell", bound="CellResult")
Count = Annotated[int, Field(ge=0, le=2**53)]  # whole numbers that JSON, floats and tables represent exactly
Rank = Annotated[int, Field(ge=1)]
BEST_FROM = 0.95  # smallest share of scored samples for a best explainer
UNCOMPARED = "not compared with a baseline"  # printed after "best" for a run without baselines


class StrictModel(BaseModel):
    """Base model that rejects unknown fields, NaN and infinity, and does not convert types."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


FEWEST_TRAININGS = 5  # with fewer training runs, a score is marked and its explainer is not ranked
RARE = "rare failures possible"  # mark of an interval that was widened for rare failures
FEW = 20  # effective clusters; with fewer, an interval is marked


class Interval(StrictModel):
    """Mean over `n` samples in `clusters` clusters, with its 95 % interval. Undefined numbers are None.

    Attributes:
        effective: Number of clusters of equal size that would be just as informative; None if this number equals
            `clusters`. There is no interval if it is below 10.
        rare: Whether the interval was widened because the samples do not rule out rare, very different scores.
    """

    value: float | None
    low: float | None
    high: float | None
    n: Count
    clusters: Count
    effective: Annotated[float, Field(ge=0)] | None = None
    rare: bool = False

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.low is not None and self.high is not None and self.low > self.high:
            raise ValueError(f"low ({self.low}) must not exceed high ({self.high})")
        if self.n == 0 and self.value is not None:
            raise ValueError(f"value must be null if n is 0; got {self.value}")
        if self.clusters > self.n:
            raise ValueError(f"clusters ({self.clusters}) must not exceed n ({self.n})")
        return self

    @classmethod
    def from_estimate(cls, estimate: Estimate) -> Self:
        """Convert an estimate; NaN becomes None."""
        value, low, high = estimate.known
        effective = None if estimate.effective == estimate.clusters else estimate.effective
        return cls(
            value=value, low=low, high=high, n=estimate.n, clusters=estimate.clusters, effective=effective,
            rare=estimate.rare,
        )  # fmt: skip

    @property
    def independent(self) -> float:
        """Return the effective number of clusters."""
        return self.clusters if self.effective is None else self.effective

    @property
    def few(self) -> bool:
        """Return whether the interval is based on few samples."""
        return self.ends is not None and self.independent < FEW

    @property
    def small(self) -> bool:
        """Return whether there are so few samples that their number must be displayed next to the value."""
        return self.n > 0 and self.independent < FEW

    @property
    def ends(self) -> tuple[float, float] | None:
        """Return (low, high), or None if there is no interval, for example because there are few samples."""
        return None if self.low is None or self.high is None else (self.low, self.high)


class PartResult(Interval):
    """Result of one named part of a metric's score, such as an exposure or a transform."""


class ForwardPasses(StrictModel):
    """Number of images passed through the classifier.

    Whole batches are counted, even if a limit cuts the last one short.

    Attributes:
        explain: Passes of the explainer.
        metric: Passes of the metric, without passes that several metrics share.
    """

    explain: Count = 0
    metric: Count = 0


RankSet = tuple[int, int] | None


def rank_text(rank: RankSet) -> str:
    """Return a rank set as text: "1-3" or "2"; "" for None."""
    if rank is None:
        return ""
    low, high = rank
    return str(low) if low == high else f"{low}-{high}"


class CellKey(StrictModel):
    """Planned cell: an explainer and a metric, each with options and a version.

    Attributes:
        cell_id: Hash of all settings and data that affect the scores.
        explainer_id: Id of the explainer. It is the same in all runs, and is the name of the folder with the
            explainer's maps.
        explainer_text: Display name of the explainer, with the options that differ from their defaults.
        metric_text: Display name of the metric, with the options that differ from their defaults.
        baseline: Whether the explainer ignores the network.
        range: (low, high) of the metric; None for an end without a bound.
        explainer_about: First line of the docstring of a Python function; empty for bundled explainers.
        metric_about: First line of the docstring of a Python function; empty for bundled metrics.
        aggregate: Whether the value is a function of the means of the parts (`aggregate` of the metric).
        note: Remark that applies to all values of the metric.
        asked_for: {additional input on which the metric's scores depend: hash of the input} (`identity`).
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
    metric_version: int | Text  # text: a hash of a function's code
    higher_is_better: bool
    range: Annotated[tuple[float | None, float | None], Strict(False)]
    explainer_about: Line = ""
    metric_about: Line = ""
    aggregate: bool = False
    note: Line = ""
    asked_for: dict[Text, Hash] = {}

    @property
    def limits(self) -> tuple[float, float]:
        """Return `range` with infinity instead of None."""
        low, high = self.range
        return -inf if low is None else low, inf if high is None else high

    @property
    def metric_id(self) -> tuple[str, int | str]:
        """Return the identifier that all cells of one metric share within a run."""
        return self.metric_text, self.metric_version


class CellResult(Interval, CellKey):
    """Result of a cell: its score with an interval and marks.

    Attributes:
        rank: (best, worst) possible rank among the explainers of the run: 1 plus the number of significantly better
            explainers, and the number of explainers minus the number of significantly worse ones. None if unranked.
        unranked: Reason why the cell has no rank; None for a ranked cell.
        scored: Number of scored samples, divided by the number of samples for which any explainer has a score on this
            metric.
        median: Median of an unbounded score.
        parts: {name: mean and interval of the part}; empty for a metric without parts.
        left_out: {reason: number of samples without a score}.
        flat: Number of scores of constant maps.
        marked: {remark of the metric: number of valid scores with this remark}.
        trainings: Number of trained networks per exposure, for a retraining metric.
        beats_baselines: Whether the explainer is significantly better than every ranked baseline of the run; None if
            no baseline is ranked.
    """

    rank: Annotated[tuple[Rank, Rank], Strict(False)] | None
    unranked: Text | None
    scored: Annotated[float, Field(ge=0, le=1)]
    median: float | None
    parts: dict[Text, PartResult] = {}
    left_out: dict[str, Count]
    flat: Count
    marked: dict[str, Count]
    forward_passes: ForwardPasses
    trainings: Count | None = None
    beats_baselines: bool | None = None

    @model_validator(mode="after")
    def _rank(self) -> Self:
        """Check that either a valid rank or a reason for its absence is given."""
        if self.rank is not None and self.rank[0] > self.rank[1]:
            raise ValueError(f"the best rank ({self.rank[0]}) must not exceed the worst rank ({self.rank[1]})")
        if (self.rank is None) != (self.unranked is not None):
            raise ValueError("exactly one of rank and unranked must be null")
        return self

    @property
    def ranks(self) -> str:
        """Return the rank as text, "1-3" or "2"; "" if there is no rank."""
        return rank_text(self.rank)

    @property
    def unbeaten(self) -> bool:
        """Return whether the explainer is ranked and no other explainer is significantly better."""
        return self.rank is not None and self.rank[0] == 1

    @property
    def best_mark(self) -> str:
        """Return the text that marks this cell if it is best."""
        return "best" if self.beats_baselines else f"best ({UNCOMPARED})"

    @property
    def oriented(self) -> float:
        """Return the value, negated if lower is better; NaN if there is no value."""
        value = nan if self.value is None else self.value
        return value if self.higher_is_better else -value

    @property
    def without(self) -> str:
        """Return the most frequent reason for a missing value; "" if there is a value."""
        return "" if self.value is not None else max(self.left_out, key=self.left_out.__getitem__, default="no samples")

    @property
    def few_trainings(self) -> bool:
        """Return whether the score is based on few training runs."""
        return self.trainings is not None and self.value is not None and self.trainings < FEWEST_TRAININGS

    @property
    def approximate(self) -> bool:
        """Return whether an unbounded score has too few clusters for its bootstrap-t interval to be exact."""
        return self.median is not None and self.ends is not None and self.independent < APPROXIMATE_BELOW


CELLS = TypeAdapter(list[CellResult])


def read_cells(content: object) -> list[CellResult]:
    """Validate and return the cells of a summary. The UserError for invalid content names the first invalid field."""
    return read_list("cells", CELLS, content)


def read_list(name: str, kind: TypeAdapter[list[Model]], content: object) -> list[Model]:
    """Validate and return a list in a summary. The UserError for invalid content names the first invalid field."""
    try:
        return kind.validate_json(json.dumps(content))
    except ValidationError as error:
        raise UserError(f"{name}.{field_line(error)}") from error


def by_metric(keys: Iterable[Key]) -> list[list[Key]]:
    """Group cells by metric, in the order of each metric's first cell."""
    groups: dict[tuple[str, int | str], list[Key]] = {}
    for key in keys:
        groups.setdefault(key.metric_id, []).append(key)
    return list(groups.values())


def of_samples(cells: Sequence[Cell]) -> list[Cell]:
    """Return the cells of the first metric that scores individual samples, or [].

    This metric selects the example images.
    """
    first = next((cell.metric_text for cell in cells if not cell.aggregate), None)
    return [cell for cell in cells if cell.metric_text == first]


def best(cells: Iterable[CellResult]) -> frozenset[str]:
    """Return the ids of the cells to mark as best, for each metric on which some explainers differ significantly.

    If the run has no ranked baseline, cells are compared only with each other (`CellResult.best_mark`).
    """
    return frozenset(
        cell.cell_id
        for group in by_metric(cells)
        if any(cell.rank and not cell.unbeaten for cell in group)
        for cell in group
        if not cell.baseline and is_best(cell.rank, cell.scored, cell.beats_baselines)
        if cell.beats_baselines is not None or not any(other.baseline and other.rank for other in group)
    )


def is_best(rank: RankSet, scored: float, beats_baselines: bool | None) -> bool:
    """Return whether an explainer that uses the network is best, given that some explainers differ significantly.

    Three conditions must be met. First, no explainer is significantly better. Second, the explainer is significantly
    better than every baseline; otherwise a map that ignores the network may be just as good. Third, nearly all samples
    are scored, so that an explainer cannot become best by omitting hard samples.
    """
    return rank is not None and rank[0] == 1 and scored >= BEST_FROM and beats_baselines is not False


def explainer_names(cells: Iterable[CellKey]) -> dict[str, str]:
    """Return {explainer_id: name}: the explainer's text, with the version if two explainers have the same text."""
    return _distinct_names({cell.explainer_id: (cell.explainer_text, cell.explainer_version) for cell in cells})


def metric_names(cells: Iterable[CellKey]) -> dict[tuple[str, int | str], str]:
    """Return {metric_id: name}: the metric's text, with the version if two metrics have the same text."""
    return _distinct_names({cell.metric_id: (cell.metric_text, cell.metric_version) for cell in cells})


def bounds(limits: tuple[float, float]) -> tuple[float | None, float | None]:
    """Return a range for JSON, with None for an infinite end."""
    low, high = (end if isfinite(end) else None for end in limits)
    return low, high


def with_version(text: str, version: int | str) -> str:
    """Append the version to a name that two items share. A version that is a hash is shortened."""
    shown = str(version) if is_named(version) else str(version).removeprefix(PRECOMPUTED)[:6]
    return f"{text} (version {shown})"


def _distinct_names(texts: dict[Name, tuple[str, int | str]]) -> dict[Name, str]:
    """Return {key: text} from {key: (text, version)}, appending the version if two keys have the same text."""
    times = Counter(text for text, _ in texts.values())
    return {key: with_version(*both) if times[both[0]] > 1 else both[0] for key, both in texts.items()}


def as_json(models: Iterable[StrictModel]) -> list[dict]:
    """Return models as plain JSON data."""
    return [model.model_dump(mode="json") for model in models]


def field_line(error: ValidationError) -> str:
    """Return a line with the name of the first invalid field and the error message."""
    first, *more = error.errors(include_url=False)
    field = ".".join(map(str, first["loc"]))
    message = " ".join(first["msg"].removeprefix("Value error, ").split())
    return (f"{field}: " if field else "") + message + (f" (and {len(more)} more)" if more else "")
