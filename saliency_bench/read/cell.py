"""A cell: one explainer scored by one metric. A `CellKey` describes a planned cell, a `CellResult` its result.

Both are flat in JSON: run.json holds keys, summary.json and submissions hold results. Submissions come from unknown
authors, so every field is checked when it is read.
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
Count = Annotated[int, Field(ge=0, le=2**53)]  # whole numbers that JSON, floats and tables hold exactly
Rank = Annotated[int, Field(ge=1)]
BEST_FROM = 0.95  # smallest share of scored samples for a best explainer
UNCOMPARED = "not compared with a baseline"  # follows "best" in a run without baselines


class StrictModel(BaseModel):
    """Base model without unknown fields, type conversion, NaN or infinity."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


FEWEST_TRAININGS = 5  # with fewer, a score is marked and its explainer is not ranked
RARE = "rare failures possible"  # mark of an interval that was widened for rare failures
FEW = 20  # effective clusters; with fewer, an interval is marked


class Interval(StrictModel):
    """Mean over `n` samples in `clusters` clusters, with its 95 % interval; None if undefined.

    Attributes:
        effective: Number of clusters of equal size with the same information; None if it equals `clusters`. With fewer
            than 10 there is no interval.
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
        """Check that the numbers are consistent."""
        if self.low is not None and self.high is not None and self.low > self.high:
            raise ValueError(f"low ({self.low}) is above high ({self.high})")
        if self.n == 0 and self.value is not None:
            raise ValueError(f"value ({self.value}) without samples")
        if self.clusters > self.n:
            raise ValueError(f"clusters ({self.clusters}) are more than n ({self.n})")
        return self

    @classmethod
    def from_estimate(cls, estimate: Estimate) -> Self:
        """Return the interval of an estimate, whose NaN become None."""
        value, low, high = estimate.known
        effective = None if estimate.effective == estimate.clusters else estimate.effective
        return cls(
            value=value, low=low, high=high, n=estimate.n, clusters=estimate.clusters, effective=effective,
            rare=estimate.rare,
        )  # fmt: skip

    @property
    def independent(self) -> float:
        """Return the number of effective clusters."""
        return self.clusters if self.effective is None else self.effective

    @property
    def few(self) -> bool:
        """Return whether the interval is based on few samples."""
        return self.ends is not None and self.independent < FEW

    @property
    def small(self) -> bool:
        """Return whether the value is based on so few samples that their number must be shown with it."""
        return self.n > 0 and self.independent < FEW

    @property
    def ends(self) -> tuple[float, float] | None:
        """Return (low, high); None if the mean has no interval, for example with few samples."""
        return None if self.low is None or self.high is None else (self.low, self.high)


class PartResult(Interval):
    """Result of one named part of a metric's score, such as an exposure or a transform."""


class ForwardPasses(StrictModel):
    """Number of images passed through the classifier: to explain, and by the metric beyond passes that metrics share.

    Batches are computed whole, so both count whole batches, even if a limit cuts the last one.
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
    """Planned cell: an explainer and a metric, each with its options and version.

    Attributes:
        cell_id: Hash of everything that the scores depend on.
        explainer_id: Name of the folder of the explainer's maps; equal explainers have equal ids in every run.
        explainer_text: Name for display, with the options that differ from their defaults.
        metric_text: Name for display, in the same form.
        baseline: Whether the explainer ignores the network.
        range: (low, high) of the metric, None for an end without a bound.
        explainer_about: First line of the docstring of a Python function; empty for bundled explainers.
        metric_about: First line of the docstring of a Python function; empty for bundled metrics.
        aggregate: Whether the value is a function of the means of the parts (`aggregate` of the metric).
        note: Remark on all values of the metric.
        asked_for: {further input of the metric that the scores depend on: its hash} (`identity`).
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
        """Return `range` with infinities."""
        low, high = self.range
        return -inf if low is None else low, inf if high is None else high

    @property
    def metric_id(self) -> tuple[str, int | str]:
        """Return the identifier that all cells of one metric share within a run."""
        return self.metric_text, self.metric_version


class CellResult(Interval, CellKey):
    """Result of a cell: its score with an interval and marks.

    Attributes:
        rank: Possible ranks among the explainers of the run: from 1 plus the number of significantly better ones, to
            the number of all minus the significantly worse ones; None if nothing is ranked.
        unranked: Why there is no rank.
        scored: Samples scored / samples that any explainer has scored by this metric.
        median: Median of an unbounded score.
        parts: {name: mean and interval of the part}; empty for a metric without parts.
        left_out: {reason: samples without a score}.
        flat: Number of scores of constant maps.
        marked: {remark of the metric: number of valid scores with it}.
        trainings: Number of trained networks per exposure, for a retraining metric.
        beats_baselines: Whether it is significantly better than every ranked baseline of the run; None without one.
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
        """Check that ranks and their reasons fit together."""
        if self.rank is not None and self.rank[0] > self.rank[1]:
            raise ValueError(f"rank ({self.rank[0]} to {self.rank[1]}) ends before it begins")
        if (self.rank is None) != (self.unranked is not None):
            raise ValueError("either rank or unranked is null")
        return self

    @property
    def ranks(self) -> str:
        """Return the rank as text, "1-3" or "2"; "" without a rank."""
        return rank_text(self.rank)

    @property
    def unbeaten(self) -> bool:
        """Return whether the explainer is ranked and none is significantly better."""
        return self.rank is not None and self.rank[0] == 1

    @property
    def best_mark(self) -> str:
        """Return the mark of this cell if it is best."""
        return "best" if self.beats_baselines else f"best ({UNCOMPARED})"

    @property
    def oriented(self) -> float:
        """Return the value, negated if lower is better; NaN if there is none."""
        value = nan if self.value is None else self.value
        return value if self.higher_is_better else -value

    @property
    def without(self) -> str:
        """Return the most frequent reason for a missing value; "" if there is a value."""
        return "" if self.value is not None else max(self.left_out, key=self.left_out.__getitem__, default="no samples")

    @property
    def few_trainings(self) -> bool:
        """Return whether the score is based on few trainings."""
        return self.trainings is not None and self.value is not None and self.trainings < FEWEST_TRAININGS

    @property
    def approximate(self) -> bool:
        """Return whether an unbounded score has too few clusters for its bootstrap-t interval to be exact."""
        return self.median is not None and self.ends is not None and self.independent < APPROXIMATE_BELOW


CELLS = TypeAdapter(list[CellResult])


def read_cells(content: object) -> list[CellResult]:
    """Return the cells in a summary's JSON; raise a UserError that names the first invalid field."""
    return read_list("cells", CELLS, content)


def read_list(name: str, kind: TypeAdapter[list[Model]], content: object) -> list[Model]:
    """Return a list in a summary's JSON; raise a UserError that names the first invalid field."""
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
    """Return the cells of the first metric that scores single samples, by which pictures are chosen, or []."""
    first = next((cell.metric_text for cell in cells if not cell.aggregate), None)
    return [cell for cell in cells if cell.metric_text == first]


def best(cells: Iterable[CellResult]) -> frozenset[str]:
    """Return the ids of the cells to mark as best, for each metric by which any two explainers differ.

    If the run has no ranked baseline, cells are only compared with each other (`CellResult.best_mark`).
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
    """Return whether an explainer other than a baseline is best, given that any two explainers differ.

    Three conditions must hold. No explainer is significantly better. It is significantly better than every baseline,
    because otherwise a map that ignores the network would be as good. Nearly all samples are scored, so that no
    explainer is best by leaving out hard samples.
    """
    return rank is not None and rank[0] == 1 and scored >= BEST_FROM and beats_baselines is not False


def explainer_names(cells: Iterable[CellKey]) -> dict[str, str]:
    """Return {explainer_id: its text}, with the version if two share a text, as functions may."""
    return _distinct_names({cell.explainer_id: (cell.explainer_text, cell.explainer_version) for cell in cells})


def metric_names(cells: Iterable[CellKey]) -> dict[tuple[str, int | str], str]:
    """Return {metric_id: its text}, with the version if two share a text."""
    return _distinct_names({cell.metric_id: (cell.metric_text, cell.metric_version) for cell in cells})


def bounds(limits: tuple[float, float]) -> tuple[float | None, float | None]:
    """Return a range in JSON form: None for an infinite end."""
    low, high = (end if isfinite(end) else None for end in limits)
    return low, high


def with_version(text: str, version: int | str) -> str:
    """Return a name that two items share, with the version; a hash, such as that of a function, is shortened."""
    shown = str(version) if is_named(version) else str(version).removeprefix(PRECOMPUTED)[:6]
    return f"{text} (version {shown})"


def _distinct_names(texts: dict[Name, tuple[str, int | str]]) -> dict[Name, str]:
    """Return {key: text} from {key: (text, version)}, with the version if two keys share a text."""
    times = Counter(text for text, _ in texts.values())
    return {key: with_version(*both) if times[both[0]] > 1 else both[0] for key, both in texts.items()}


def as_json(models: Iterable[StrictModel]) -> list[dict]:
    """Return models as plain JSON data."""
    return [model.model_dump(mode="json") for model in models]


def field_line(error: ValidationError) -> str:
    """Return which field is the first that does not fit its schema, and why."""
    first, *more = error.errors(include_url=False)
    field = ".".join(map(str, first["loc"]))
    message = " ".join(first["msg"].removeprefix("Value error, ").split())
    return (f"{field}: " if field else "") + message + (f" (and {len(more)} more)" if more else "")
