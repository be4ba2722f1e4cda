"""Check requirements of a run, such as "gradcam:saliency_miou>=0.3", as a gate in continuous integration.

A requirement may also compare two explainers of the run: "gradcam:saliency_miou>random". The verdict then depends on
the interval of the difference on the explainers' common samples, and the bound is 0.

A requirement fails only if the samples contradict it: the whole interval lies on the wrong side of the bound, or the
paired test shows that the explainer is worse than in an earlier run. If the interval contains the bound, the
requirement is undecided. An undecided requirement passes unless `strict` is set (`passes`). If the range of the metric
is bounded, the interval also allows for rare failures (`intervals.outlasting_rare_scores`), so it may be wider than the
interval in a table.

Holm's method (1979) corrects for the number of requirements of a call. First, all m requirements are judged with
intervals of level 1 - .05 / m. The decided requirements are removed, and the remaining k are judged with intervals of
level 1 - .05 / k. These steps are repeated until no further requirement is decided. All verdicts of a call are
therefore correct together in 95 % of calls, and true requirements fail by chance in 2.5 % of calls. With an earlier
run, the rate is 5 %: the paired test adds 2.5 %, because it is two-sided and a requirement fails on only one side. If
scores are 0 or 1 and samples are independent, the intervals are exact and guarantee these rates. For other scores, the
rates are as accurate as the intervals.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, inf, isfinite, sqrt
from typing import TYPE_CHECKING

import numpy as np
from pydantic import JsonValue
from scipy import special

from saliency_bench.errors import UserError, unknown
from saliency_bench.options import parse
from saliency_bench.read.analysis.differences import RunPair, compared, why_not
from saliency_bench.read.cell import RARE, CellResult, Interval, explainer_names, metric_names
from saliency_bench.read.run_folder import CellScores
from saliency_bench.read.statistics.clusters import Matched, effective_clusters
from saliency_bench.read.statistics.intervals import (
    INTERVAL_FROM,
    TAIL,
    Estimate,
    aggregate_difference,
    clopper_pearson,
    interval,
    is_bounded,
    paired_difference,
    t_quantile,
    wilson,
)
from saliency_bench.read.statistics.ranking import aggregate_of, aggregated
from saliency_bench.read.statistics.trainings import areas_by_training, crossed

if TYPE_CHECKING:
    from saliency_bench.read.finished_run import Run

# `float` would also accept 0_1.
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.ASCII | re.IGNORECASE)
LEVEL = 1 - 2 * TAIL
MET, UNDECIDED, FAILED = "met", "undecided", "failed"
FORM = (
    "write EXPLAINER:METRIC>=NUMBER or EXPLAINER:METRIC<=NUMBER, for example 'gradcam:saliency_miou>=0.3', or "
    "EXPLAINER:METRIC>EXPLAINER or EXPLAINER:METRIC<EXPLAINER, for example 'gradcam:saliency_miou>random'"
)
MOST = 1e9  # samples; larger numbers are not printed
POWER = 0.8  # probability with which the smallest reported violation fails the requirement


@dataclass(frozen=True)
class Requirement:
    """A bound on the mean of a cell, or on the difference between the means of two explainers.

    Attributes:
        names: Explainer and metric with their options, joined by a colon.
        at_least: True for >= and >, False for <= and <.
        bound: Number on the right side; 0 for a difference.
        other: Explainer on the right side; "" for a number.
    """

    names: str
    at_least: bool
    bound: float
    other: str = ""

    @classmethod
    def read(cls, text: str) -> "Requirement":
        """Read "EXPLAINER:METRIC>=NUMBER" or "EXPLAINER:METRIC>EXPLAINER".

        Raises:
            UserError: The string is not a requirement.
        """
        match = re.fullmatch(r"\s*(.+?)\s*(>=|<=)\s*([^<>=]+?)\s*", text)
        if match is None and (compared := re.fullmatch(r"\s*(.+?:[^<>]+?)\s*([<>])\s*([^<>=\s][^<>]*?)\s*", text)):
            if NUMBER.fullmatch(compared[3]):
                raise UserError(f"'{text}' is not a requirement: write {compared[2]}= before a number")
            return cls(compared[1], compared[2] == ">", 0.0, compared[3])
        if match is None or ":" not in match[1]:
            raise UserError(f"'{text}' is not a requirement; {FORM}")
        bound = float(match[3]) if NUMBER.fullmatch(match[3]) else float("nan")
        if not isfinite(bound):
            raise UserError(f"'{match[3]}' in '{text}' is not a number; {FORM}")
        return cls(match[1], match[2] == ">=", bound)

    def __str__(self) -> str:
        sign = ">" if self.at_least else "<"
        return f"{self.names} {sign} {self.other}" if self.other else f"{self.names} {sign}= {self.bound:g}"


@dataclass(frozen=True)
class CheckedRequirement:
    """A requirement and its outcome.

    Attributes:
        requirement: The requirement.
        cell: Cell to which the requirement refers.
        interval: Interval that determines the verdict, of the mean or of the difference of two explainers.
        level: Confidence level of the interval.
        exact: Whether the interval is Clopper and Pearson's, for scores of 0 and 1.
        pair: Cells of the earlier run and of this run; None if there is no earlier run.
    """

    requirement: Requirement
    cell: CellResult
    interval: Interval
    level: float
    exact: bool = False
    pair: RunPair | None = None

    @property
    def is_worse(self) -> bool:
        """Return whether the paired test shows that the explainer is worse than in the earlier run."""
        return self.pair is not None and self.pair.direction < 0

    @property
    def verdict(self) -> str:
        """Return "failed" if the samples contradict the requirement, "met" if they confirm it, else "undecided"."""
        return FAILED if self.is_worse else verdict(self.requirement, self.interval)

    @property
    def passed(self) -> bool:
        """Return True unless the samples contradict the requirement."""
        return self.verdict != FAILED

    @property
    def needed(self) -> int | None:
        """Return the approximate number of samples needed to decide the requirement if the mean stays the same.

        The result is None if the requirement is decided, or if the mean is too close to the bound.
        """
        value, ends = self.interval.value or 0.0, self.interval.ends
        if self.verdict != UNDECIDED or ends is None or value == self.requirement.bound:
            return None
        half = ends[1] - value if self.requirement.bound > value else value - ends[0]
        # The width of an interval is proportional to 1 / sqrt(n).
        needed = self.interval.n * (half / (self.requirement.bound - value)) ** 2
        return ceil(needed) if needed < MOST else None

    @property
    def smallest_violation(self) -> float | None:
        """Return the smallest violation that this many samples detect with 80 % probability.

        The result is None if there is no interval, or if even the largest possible violation may remain undetected.
        """
        if (ends := self.interval.ends) is None:
            return None
        value, (low, high), tail = self.interval.value or 0.0, self.cell.limits, (1 - self.level) / 2
        numbers = np.array([self.requirement.bound, value, *ends])
        if not self.requirement.other and not self.cell.aggregate and is_bounded((low, high)):
            bound, mean, *shares = (numbers - low) / (high - low)
            if not self.requirement.at_least:
                bound, mean, *shares = 1 - bound, 1 - mean, *(1 - end for end in reversed(shares))
            if self.exact:
                share = violation_of_hits(bound, self.interval.n, tail)
            else:
                share = violation_of_share(bound, wilson_size(mean, shares[::-1], tail), tail)
            return None if share is None else share * (high - low)
        half = ends[1] - value if self.requirement.at_least else value - ends[0]
        return found_violation(half, tail) if half > 0 and found_violation(half, tail) <= high - low else None

    def passes(self, strict: bool = False) -> bool:
        """Return whether the requirement passes: it has not failed or, if `strict`, it is met."""
        return self.verdict == MET if strict else self.passed

    def line(self, against: str) -> str:
        """Return the outcome as a line of text; `against` is the name of the earlier run."""
        show = _signed if self.requirement.other else _number
        value, ends = show(self.interval.value), self.interval.ends
        interval = f" [{show(ends[0])}, {show(ends[1])}]" if ends else ""
        text = f"{self.verdict:<9}  {self.requirement}: {value}{interval}, n = {self.interval.n}"
        text += f" in {self.interval.clusters} clusters" * (self.interval.clusters < self.interval.n)
        text += ", few samples" * self.interval.few
        text += f", {RARE}" * self.interval.rare
        text += f", interval of {100 * self.level:.4g} %" if ends and self.level > LEVEL else ""
        if self.verdict == UNDECIDED:
            about = f"; about {self.needed:,} samples would be enough" if self.needed else ""
            text += f", the interval contains the bound, so these samples are too few to decide{about}"
        if not ends:
            text += ", no interval: all scores are equal"
        elif (violation := self.smallest_violation) is not None:
            text += f"; a violation by {_number(violation)} would be detected with {100 * POWER:.0f} % probability"
        else:
            text += "; with so few samples, no violation would be detected reliably"
        limits, below = self.cell.limits, self.requirement.at_least == (self.verdict == MET)
        needed = limits if self.requirement.other else limits[:1] if below else limits[1:]
        if self.verdict != UNDECIDED and not all(map(isfinite, needed)):
            text += f"; the range of {self.cell.metric_text} is unbounded, so rare failures are not ruled out"
        if self.pair is None:
            return text
        ends_of_pair = f" [{self.pair.low:+.3f}, {self.pair.high:+.3f}]" if isfinite(self.pair.low) else ""
        return f"{text}; against {against}: {self.pair.mean or 0.0:+.3f}{ends_of_pair}, {self.pair.word}"

    def as_dict(self) -> dict:
        """Return plain data."""
        cell = self.cell
        earlier = (
            None if self.pair is None else self.pair.as_dict() | {"word": self.pair.word, "is_worse": self.is_worse}
        )
        return {
            "requirement": str(self.requirement),
            "explainer": cell.explainer_text,
            "metric": cell.metric_text,
            "cell_id": cell.cell_id,
            "at_least": self.requirement.at_least,
            "bound": self.requirement.bound,
            **{name: getattr(self.interval, name) for name in ("value", "low", "high", "n", "clusters")},
            "level": self.level,
            "other": self.requirement.other or None,
            "rare_failures": self.interval.rare,
            "smallest_violation": self.smallest_violation,
            "verdict": self.verdict,
            "needed": self.needed,
            "against": earlier,
        }


def found_violation(half: float, tail: float) -> float:
    """Return the distance from mean to bound at which a fraction `POWER` of the intervals lies beyond the bound.

    The half of the interval towards the bound is z(1 - tail) standard errors wide. The mean must be another z(.8)
    standard errors away from the bound, so the distance is half * (1 + z(.8) / z(1 - tail)).
    """
    return half * (1 + t_quantile(inf, 1 - POWER) / t_quantile(inf, tail))


def violation_of_hits(bound: float, n: int, tail: float) -> float | None:
    """Return the smallest violation that n samples detect if a proportion must be at least `bound`.

    The requirement fails if the number of hits is so small that the interval of `clopper_pearson` ends below the bound.
    The violation is bound - p, where p is the proportion at which the requirement fails with probability `POWER`. The
    result is None if the requirement cannot fail.
    """
    numbers = np.arange(n)
    hits = int(np.count_nonzero(special.betaincinv(numbers + 1, n - numbers, 1 - tail) < bound)) - 1
    return None if hits < 0 else bound - float(special.betaincinv(hits + 1, n - hits, 1 - POWER))


def wilson_size(mean: float, ends: Sequence[float], tail: float) -> float:
    """Return the sample size at which Wilson's interval for a proportion has a given end.

    (end - m)^2 = z^2 end (1 - end) / n, so n is z^2 end (1 - end) / (end - m)^2. The first of two ends is used, unless
    it is 0, 1 or equal to the mean; in this case, the second end is used. If neither end determines the size, the
    result is 0.
    """
    z = t_quantile(inf, tail)
    sizes = [z**2 * end * (1 - end) / (end - mean) ** 2 for end in ends if 0 < end < 1 and end != mean]
    return sizes[0] if sizes else 0.0


def violation_of_share(bound: float, size: float, tail: float) -> float | None:
    """Return the smallest violation that the samples detect if a mean in [0, 1] must be at least `bound`.

    The variance of the mean m is assumed to be m (1 - m) / size, as for 0/1 scores. The requirement fails for sample
    means up to c = bound - z(1 - tail) sqrt(bound (1 - bound) / size). The sample mean is at most c with probability
    `POWER` if the true mean is the lower end of Wilson's interval of c with z(.8). The result is None if the
    requirement cannot fail, or if `size` is 0.
    """
    if not 0 < bound <= 1 or not size:
        return None
    greatest = bound - t_quantile(inf, tail) * sqrt(bound * (1 - bound) / size)
    return bound - wilson(greatest, size, t_quantile(inf, 1 - POWER))[0] if greatest > 0 else None


def verdict(requirement: Requirement, interval: Interval) -> str:
    """Return the verdict on a requirement from its interval, or from its value if all scores are equal."""
    value = interval.value or 0.0
    low, high = interval.ends or (value, value)
    if requirement.other and low == high == 0:
        return UNDECIDED  # equal scores do not show which of the two is better
    if requirement.at_least:
        return MET if low >= requirement.bound else UNDECIDED if high >= requirement.bound else FAILED
    return MET if high <= requirement.bound else UNDECIDED if low <= requirement.bound else FAILED


def check(run: "Run", requirements: Sequence[Requirement], against: "Run | None" = None) -> list[CheckedRequirement]:
    """Check requirements of a run and, if an earlier run is given, that no explainer is worse than in that run.

    All requirements of one call are judged jointly (Holm), and the p-values of the paired test are adjusted over all
    pairs of the call.

    Raises:
        UserError: A requirement refers to no cell, a cell has no interval, or the runs cannot be compared.
    """
    cells = [_cell(requirement, run) for requirement in requirements]
    others = [_other(requirement, cell, run) for requirement, cell in zip(requirements, cells, strict=True)]
    pairs = {} if against is None else _pairs(against, run, {cell.cell_id: cell for cell in cells})
    judged = _holm(run, requirements, list(zip(cells, others, strict=True)))
    return [
        CheckedRequirement(requirement, cell, *by, pairs.get(cell.cell_id))
        for requirement, cell, by in zip(requirements, cells, judged, strict=True)
    ]


def _holm(
    run: "Run", requirements: Sequence[Requirement], cells: Sequence[tuple[CellResult, CellResult | None]]
) -> list[tuple[Interval, float, bool]]:
    """Return (interval, its level, whether the interval is Clopper and Pearson's) for each requirement."""
    codes = run.scores.codes()
    judged: dict[int, tuple[Interval, float, bool]] = {}
    undecided = list(range(len(cells)))
    while undecided:
        tail = TAIL / len(undecided)
        for index in undecided:
            estimate = _estimate(run, *cells[index], codes, tail)
            exact = cells[index][1] is None and _is_share(run.scores, cells[index][0], estimate)
            judged[index] = Interval.from_estimate(estimate), 1 - 2 * tail, exact
        left = [index for index in undecided if verdict(requirements[index], judged[index][0]) == UNDECIDED]
        if len(left) == len(undecided):
            break
        undecided = left
    return [judged[index] for index in range(len(cells))]


def _estimate(run: "Run", cell: CellResult, other: CellResult | None, codes: np.ndarray, tail: float) -> Estimate:
    """Return the value of a cell, or its difference from another cell, with an interval.

    Each end of the interval is wrong with the probability `tail`.
    """
    if other is not None:
        return _difference(run, cell, other, codes, tail)
    if cell.aggregate:
        return aggregated(cell, run.scores.parts[cell.cell_id], codes, run.seed, tail)
    if cell.trainings:
        (parts,) = run.values_by_part([cell.cell_id]).values()
        areas = areas_by_training(parts)
        assert areas is not None
        return crossed(areas, codes, cell.limits, tail, gate=True)
    values = run.scores.values[cell.cell_id]
    estimate = interval(values, codes, cell.limits, run.seed, tail, gate=True)
    return clopper_pearson(estimate, tail) if _is_share(run.scores, cell, estimate) else estimate


def _is_share(scores: CellScores, cell: CellResult, estimate: Estimate) -> bool:
    """Return whether a mean is a proportion: all scores are 0 or 1, and each sample is its own cluster."""
    if cell.aggregate or cell.trainings or cell.limits != (0, 1) or estimate.clusters != estimate.n:
        return False
    scored = scores.values[cell.cell_id]
    scored = scored[np.isfinite(scored)]
    return bool(((scored == 0) | (scored == 1)).all())


def _difference(run: "Run", cell: CellResult, other: CellResult, codes: np.ndarray, tail: float) -> Estimate:
    """Return a cell minus another cell of the same metric, on their common samples."""
    if not cell.aggregate:
        matched = Matched([run.scores.values[cell.cell_id], run.scores.values[other.cell_id]], codes, cell.limits)
        return paired_difference(matched, 0, 1, tail, gate=True)
    if (aggregate := aggregate_of(cell)) is None:
        raise UserError(
            f"the installed package has no version {cell.metric_version} of {cell.metric_text}; repeat the run"
        )
    first, second = run.scores.parts[cell.cell_id], run.scores.parts[other.cell_id]
    return aggregate_difference(aggregate, first, second, codes, run.seed, tail)


def _other(requirement: Requirement, cell: CellResult, run: "Run") -> CellResult | None:
    """Return the cell of the second explainer of a requirement; None if the requirement has only one.

    Raises:
        UserError: The cell is missing, or shares too few samples with the first.
    """
    if not requirement.other:
        return None
    other = find_cell(f"{requirement.other}:{metric_names(run.cells)[cell.metric_id]}", run)
    if other.cell_id == cell.cell_id:
        raise UserError(f"{requirement}: both explainers are the same; compare two different explainers")
    common = run.scores.takes_part(cell) & run.scores.takes_part(other)
    count = effective_clusters(np.bincount(run.scores.codes()[common]))
    if count < INTERVAL_FROM:
        raise UserError(
            f"{requirement}: the two explainers share {int(count)} independent samples of {run.folder}, but an "
            f"interval needs {INTERVAL_FROM}; increase the --limit of the run"
        )
    return other


def _cell(requirement: Requirement, run: "Run") -> CellResult:
    """Return the cell of a requirement; raise UserError if the cell is missing or cannot be checked."""
    cell = find_cell(requirement.names, run)
    low, high = cell.limits
    if not requirement.other and not low <= requirement.bound <= high:
        raise UserError(
            f"{requirement}: scores of {cell.metric_text} range from {low:g} to {high:g}; choose a bound in this range"
        )
    if cell.value is None:
        raise UserError(f"{requirement}: no sample of {run.folder} has a score: {cell.without}")
    if cell.independent < INTERVAL_FROM:
        raise UserError(
            f"{requirement}: {run.folder} has {int(cell.independent)} independent samples, but an interval needs "
            f"{INTERVAL_FROM}; increase the --limit of the run"
        )
    return cell


def find_cell(names: str, run: "Run") -> CellResult:
    """Return the cell that "EXPLAINER:METRIC" names. Omitted options have their defaults.

    Options may contain colons, so `names` is split at a colon for which both parts are names in the run.
    """
    explainers, metrics = explainer_names(run.cells), metric_names(run.cells)
    splits = [(names[:index].strip(), names[index + 1 :].strip()) for index, sign in enumerate(names) if sign == ":"]
    cells = [
        cell
        for cell in run.cells
        if any(
            _is_called(explainer, explainers[cell.explainer_id], cell.explainer_text, cell.explainer_options)
            and _is_called(metric, metrics[cell.metric_id], cell.metric_text, cell.metric_options)
            for explainer, metric in splits
        )
    ]
    by_name = {f"{explainers[cell.explainer_id]}:{metrics[cell.metric_id]}": cell for cell in run.cells}
    if names in by_name:
        return by_name[names]
    if not cells:
        for name, reason in run.summary.get("misfits", {}).items():
            if any(explainer == name for explainer, _ in splits):
                why = reason.partition(";")[0]
                raise UserError(f"{name} was left out of {run.folder}, because it does not support the network: {why}")
        raise unknown("explainer and metric", names, by_name, owner=str(run.folder))
    if len(cells) > 1:
        names_of_cells = " or ".join(name for name, cell in by_name.items() if cell in cells)
        raise UserError(f"{names} is ambiguous in {run.folder}; write {names_of_cells}")
    return cells[0]


def _is_called(given: str, name: str, text: str, options: Mapping[str, JsonValue]) -> bool:
    """Return whether a name that the user typed refers to an explainer or metric.

    Args:
        given: Name that the user typed.
        name: Unique name of the explainer or metric in the run.
        text: Name with the options that differ from their defaults.
        options: All options of the explainer or metric.
    """
    if given in (name, text):
        return True
    try:
        (name_given, chosen), (name_needed, needed) = parse(given), parse(text)
    except UserError:
        return False
    return (
        name_given == name_needed
        and set(needed) <= set(chosen) <= set(options)
        and all(options[key] == chosen[key] for key in chosen)
    )


def _pairs(before: "Run", after: "Run", cells: Mapping[str, CellResult]) -> dict[str, RunPair]:
    """Return {cell id in the later run: pair of cells}; raise UserError if the runs cannot be compared."""
    if reason := why_not(before, after):
        raise UserError(f"{before.folder} and {after.folder} cannot be compared sample by sample: {reason}")
    both = [(_counterpart(cell, before), cell) for cell in cells.values()]
    pairs = compared(
        before, after, [(first, second, second.explainer_text, second.metric_text) for first, second in both]
    )
    for pair in pairs:
        if not pair.ids:
            raise UserError(
                f"{before.folder} and {after.folder} have no samples in common; give a run on the same samples"
            )
    return dict(zip(cells, pairs, strict=True))


def _counterpart(cell: CellResult, before: "Run") -> CellResult:
    """Return the cell of an earlier run with the same metric and the same explainer, in any version."""
    earlier = find_cell(f"{cell.explainer_text}:{cell.metric_text}", before)
    if earlier.metric_version != cell.metric_version:
        raise UserError(
            f"{cell.metric_text} has version {earlier.metric_version} in {before.folder} and {cell.metric_version} "
            f"in the other run, so their scores cannot be compared; repeat the run {before.folder}"
        )
    return earlier


def _signed(value: float | None) -> str:
    """Return a difference with its sign; +0.000 if it is nearly zero."""
    return f"{round(value or 0.0, 3) + 0.0:+.3f}"


def _number(value: float | None) -> str:
    """Return a number with three decimals, or as a power of ten if it is small."""
    value = value or 0.0
    return f"{value:.1e}" if 0 < abs(value) < 0.0005 else f"{value:.3f}"
