"""Requirements of a run, as a gate for continuous integration asks them: "gradcam:saliency_miou>=0.3".

A requirement fails only where the samples speak against it: the whole 95 % interval lies on the wrong side of the
bound, or the paired test finds the explainer worse than in an earlier run. An interval that contains the bound decides
nothing, and the requirement passes.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite

from pydantic import JsonValue

from saliency_bench.analysis.differences import Pair, compared, why_not
from saliency_bench.errors import UserError, unknown
from saliency_bench.options import parse
from saliency_bench.results.cell import CellResult, explainer_names, metric_names
from saliency_bench.results.intervals import INTERVAL_FROM
from saliency_bench.results.run_folder import RunData

NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.ASCII | re.IGNORECASE)  # no 0_1, which Python reads as 1
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
        pair: the cell in an earlier run, first, and in this one.
    """

    requirement: Requirement
    cell: CellResult
    pair: Pair | None = None

    @property
    def ends(self) -> tuple[float, float]:
        """Return the interval; scores that are all equal may have none."""
        value = self.cell.value or 0.0
        return self.cell.ends or (value, value)

    @property
    def is_worse(self) -> bool:
        """Whether the paired test finds the explainer worse than before."""
        return self.pair is not None and self.pair.direction < 0

    @property
    def verdict(self) -> str:
        """Return "failed" if the interval lies beyond the bound, "met" if it lies within, else "undecided"."""
        low, high = self.ends
        reaches, is_beyond = high >= self.requirement.bound, low >= self.requirement.bound
        if not self.requirement.at_least:
            reaches, is_beyond = low <= self.requirement.bound, high <= self.requirement.bound
        if self.is_worse or not reaches:
            return FAILED
        return MET if is_beyond else UNDECIDED

    @property
    def passed(self) -> bool:
        """Whether nothing speaks against the requirement."""
        return self.verdict != FAILED

    def line(self, against: str) -> str:
        """Return the outcome as a line of text; `against` is the name of the earlier run."""
        value, ends = _number(self.cell.value), self.cell.ends
        interval = f" [{_number(ends[0])}, {_number(ends[1])}]" if ends else ""
        text = f"{self.verdict:<9}  {self.requirement}: {value}{interval}, n = {self.cell.n}"
        if self.verdict == UNDECIDED:
            text += ", the interval contains the bound"
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
            **{name: getattr(cell, name) for name in ("value", "low", "high", "n", "clusters")},
            "verdict": self.verdict,
            "against": earlier,
        }


def check(run: RunData, requirements: Sequence[Requirement], against: RunData | None = None) -> list[Checked]:
    """Check requirements of a run, and that no explainer is worse than in an earlier run over the same samples.

    All pairs of one call are one family of the paired test.

    Args:
        run: the run.
        requirements: of the run.
        against: the earlier run.

    Raises:
        UserError: for a requirement without a cell, a cell without interval, or runs that cannot be compared.
    """
    cells = [_cell(requirement, run) for requirement in requirements]
    pairs = {} if against is None else _pairs(against, run, {cell.cell_id: cell for cell in cells})
    return [
        Checked(requirement, cell, pairs.get(cell.cell_id))
        for requirement, cell in zip(requirements, cells, strict=True)
    ]


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
    if cell.clusters < INTERVAL_FROM:
        raise UserError(
            f"{requirement}: {run.folder} has {cell.clusters} independent samples, and an interval needs "
            f"{INTERVAL_FROM}; raise --limit of the run"
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
