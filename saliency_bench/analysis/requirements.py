"""Requirements of a run, as a gate for continuous integration asks them: "gradcam:saliency_miou>=0.3".

A requirement fails only where the samples speak against it: the whole interval lies on the wrong side of the bound, or
the paired test finds the explainer worse than in an earlier run. An interval that contains the bound decides nothing,
and the requirement passes.

Intervals are those of Holm's method (1979) over the requirements of one call: all m are judged by intervals of level
1 - .05 / m; those that are decided are set aside, and the k that are left are judged by 1 - .05 / k, until none of them
is decided. So all verdicts of a call hold together with 95 %, and true requirements fail by chance in 2.5 % of the
calls, with an earlier run in 5 %: the paired test is two-sided, and one side of it fails. 0/1 scores of single samples
have exact intervals here, which keep this for every share; others keep it as far as their intervals are right.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, isfinite

import numpy as np
from pydantic import JsonValue

from saliency_bench.analysis.differences import Pair, compared, why_not
from saliency_bench.errors import UserError, unknown
from saliency_bench.options import parse
from saliency_bench.results.cell import CellResult, Interval, explainer_names, metric_names
from saliency_bench.results.intervals import INTERVAL_FROM, TAIL, Estimate, clopper_pearson, interval
from saliency_bench.results.ranking import aggregated
from saliency_bench.results.run_folder import RunData
from saliency_bench.results.trainings import areas_by_training, crossed

NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.ASCII | re.IGNORECASE)  # no 0_1, which Python reads as 1
LEVEL = 1 - 2 * TAIL
MET, UNDECIDED, FAILED = "met", "undecided", "failed"
FORM = "write EXPLAINER:METRIC>=NUMBER or <=, for example 'gradcam:saliency_miou>=0.3'"


@dataclass(frozen=True)
class Requirement:
    """A bound on the mean of a cell.

    Attributes:
        names: explainer and metric with their options, joined by a colon.
        at_least: whether it says >=, not <=.
        bound: the number.
    """

    names: str
    at_least: bool
    bound: float

    @classmethod
    def read(cls, text: str) -> "Requirement":
        """Read "EXPLAINER:METRIC>=NUMBER". Raise UserError for a text that is no requirement."""
        match = re.fullmatch(r"\s*(.+?)\s*(>=|<=)\s*([^<>=]+?)\s*", text)
        if match is None or ":" not in match[1]:
            raise UserError(f"'{text}' is not a requirement; {FORM}")
        bound = float(match[3]) if NUMBER.fullmatch(match[3]) else float("nan")
        if not isfinite(bound):
            raise UserError(f"'{match[3]}' in '{text}' is not a number; {FORM}")
        return cls(match[1], match[2] == ">=", bound)

    def __str__(self) -> str:
        return f"{self.names} {'>=' if self.at_least else '<='} {self.bound:g}"


@dataclass(frozen=True)
class Checked:
    """A requirement and its outcome.

    Attributes:
        requirement: what was asked for.
        cell: the cell it is about.
        interval: by which it was judged.
        level: of the interval.
        pair: the cell in an earlier run, first, and in this one.
    """

    requirement: Requirement
    cell: CellResult
    interval: Interval
    level: float
    pair: Pair | None = None

    @property
    def is_worse(self) -> bool:
        """Return whether the paired test finds the explainer worse than before."""
        return self.pair is not None and self.pair.direction < 0

    @property
    def verdict(self) -> str:
        """Return "failed" if the interval lies beyond the bound, "met" if it lies within, else "undecided"."""
        return FAILED if self.is_worse else verdict(self.requirement, self.interval)

    @property
    def passed(self) -> bool:
        """Return whether nothing speaks against the requirement."""
        return self.verdict != FAILED

    @property
    def needed(self) -> int | None:
        """Return about how many samples would decide, if the mean stayed; None where it is decided or on the bound."""
        value, ends = self.cell.value or 0.0, self.interval.ends
        if self.verdict != UNDECIDED or ends is None or value == self.requirement.bound:
            return None
        half = ends[1] - value if self.requirement.bound > value else value - ends[0]
        # The width of an interval falls with the root of n.
        return ceil(self.cell.n * (half / (self.requirement.bound - value)) ** 2)

    def line(self, against: str) -> str:
        """Return the outcome as a line of text; `against` is the name of the earlier run."""
        value, ends = _number(self.cell.value), self.interval.ends
        interval = f" [{_number(ends[0])}, {_number(ends[1])}]" if ends else ""
        text = f"{self.verdict:<9}  {self.requirement}: {value}{interval}, n = {self.cell.n}"
        text += f" in {self.cell.clusters} clusters" * (self.cell.clusters < self.cell.n)
        text += ", few samples" * self.cell.few
        text += f", interval of {100 * self.level:.4g} %" if ends and self.level > LEVEL else ""
        if self.verdict == UNDECIDED:
            about = f"; about {self.needed:,} would decide" if self.needed else ""
            text += f", the interval contains the bound: too few samples to pass or fail{about}"
        if not ends:
            text += ", no interval: all scores are equal"
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
            "verdict": self.verdict,
            "needed": self.needed,
            "against": earlier,
        }


def verdict(requirement: Requirement, interval: Interval) -> str:
    """Return what an interval says of a requirement; where all scores are equal there may be none, and one decides."""
    value = interval.value or 0.0
    low, high = interval.ends or (value, value)
    if requirement.at_least:
        return MET if low >= requirement.bound else UNDECIDED if high >= requirement.bound else FAILED
    return MET if high <= requirement.bound else UNDECIDED if low <= requirement.bound else FAILED


def check(run: RunData, requirements: Sequence[Requirement], against: RunData | None = None) -> list[Checked]:
    """Check requirements of a run, and that no explainer is worse than in an earlier run over the same samples.

    All requirements of one call are judged together (Holm), and all pairs of one call are one family of the paired
    test.

    Args:
        run: the run.
        requirements: of the run.
        against: the earlier run.

    Raises:
        UserError: for a requirement without a cell, a cell without interval, or runs that cannot be compared.
    """
    cells = [_cell(requirement, run) for requirement in requirements]
    pairs = {} if against is None else _pairs(against, run, {cell.cell_id: cell for cell in cells})
    judged = _holm(run, requirements, cells)
    return [
        Checked(requirement, cell, *by, pairs.get(cell.cell_id))
        for requirement, cell, by in zip(requirements, cells, judged, strict=True)
    ]


def _holm(
    run: RunData, requirements: Sequence[Requirement], cells: Sequence[CellResult]
) -> list[tuple[Interval, float]]:
    """Return (the interval that each requirement is judged by, its level)."""
    codes = run.codes()
    judged: dict[int, tuple[Interval, float]] = {}
    undecided = list(range(len(cells)))
    while undecided:
        tail = TAIL / len(undecided)
        judged |= {
            index: (Interval.from_estimate(_estimate(run, cells[index], codes, tail)), 1 - 2 * tail)
            for index in undecided
        }
        left = [index for index in undecided if verdict(requirements[index], judged[index][0]) == UNDECIDED]
        if len(left) == len(undecided):
            break
        undecided = left
    return [judged[index] for index in range(len(cells))]


def _estimate(run: RunData, cell: CellResult, codes: np.ndarray, tail: float) -> Estimate:
    """Return the value of a cell with the interval that leaves `tail` on each side."""
    if cell.aggregate:
        return aggregated(cell, run.parts[cell.cell_id], codes, run.summary["seed"], tail)
    if cell.trainings:
        (parts,) = run.values_by_part([cell.cell_id]).values()
        areas = areas_by_training(parts)
        assert areas is not None
        return crossed(areas, codes, cell.limits, tail)
    values = run.values[cell.cell_id]
    estimate = interval(values, codes, cell.limits, run.summary["seed"], tail)
    scored = values[np.isfinite(values)]
    if cell.limits == (0, 1) and estimate.clusters == estimate.n and bool(((scored == 0) | (scored == 1)).all()):
        return clopper_pearson(estimate, tail)
    return estimate


def _cell(requirement: Requirement, run: RunData) -> CellResult:
    """Return the cell of a requirement. Raise UserError if there is none or it cannot be checked."""
    cell = find_cell(requirement.names, run)
    low, high = cell.limits
    if not low <= requirement.bound <= high:
        raise UserError(
            f"{requirement}: scores of {cell.metric_text} are from {low:g} to {high:g}; choose a bound between"
        )
    if cell.value is None:
        raise UserError(f"{requirement}: no sample of {run.folder} has a score: {cell.without}")
    if cell.independent < INTERVAL_FROM:
        raise UserError(
            f"{requirement}: {run.folder} has {int(cell.independent)} independent samples, too few to pass or fail; "
            f"an interval needs {INTERVAL_FROM}, raise --limit of the run"
        )
    return cell


def find_cell(names: str, run: RunData) -> CellResult:
    """Return the cell that "EXPLAINER:METRIC" names; options that are not written have their defaults.

    The names in the run tell where the explainer ends, so that options may hold colons.
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
        raise unknown("explainer and metric", names, by_name, owner=str(run.folder))
    if len(cells) > 1:
        names_of_cells = " or ".join(name for name, cell in by_name.items() if cell in cells)
        raise UserError(f"{names} may be {names_of_cells} of {run.folder}; write one of these")
    return cells[0]


def _is_called(given: str, name: str, text: str, options: Mapping[str, JsonValue]) -> bool:
    """Return whether a name as it was typed means an item.

    Args:
        given: as typed.
        name: distinguishes the item from all others of the run.
        text: the name with the options that are not defaults.
        options: all options.
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


def _pairs(before: RunData, after: RunData, cells: Mapping[str, CellResult]) -> dict[str, Pair]:
    """Return {cell id in the later run: the cell in both}. Raise UserError for runs that cannot be compared."""
    if reason := why_not(before, after):
        raise UserError(f"{before.folder} and {after.folder} cannot be compared sample by sample: {reason}")
    both = [(_counterpart(cell, before), cell) for cell in cells.values()]
    pairs = compared(
        before, after, [(first, second, second.explainer_text, second.metric_text) for first, second in both]
    )
    for pair in pairs:
        if not pair.ids:
            raise UserError(
                f"{before.folder} and {after.folder} have no sample in common; give a run over the same ones"
            )
    return dict(zip(cells, pairs, strict=True))


def _counterpart(cell: CellResult, before: RunData) -> CellResult:
    """Return the cell of the same explainer, in any version, and the same metric in an earlier run."""
    earlier = find_cell(f"{cell.explainer_text}:{cell.metric_text}", before)
    if earlier.metric_version != cell.metric_version:
        raise UserError(
            f"{cell.metric_text} has version {earlier.metric_version} in {before.folder} and {cell.metric_version} "
            f"in the other run, so that their scores cannot be compared; make {before.folder} again"
        )
    return earlier


def _number(value: float | None) -> str:
    """Return a number with three decimals, or as a power of ten if it is small."""
    value = value or 0.0
    return f"{value:.1e}" if 0 < abs(value) < 0.0005 else f"{value:.3f}"
