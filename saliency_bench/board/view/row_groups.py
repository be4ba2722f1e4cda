"""Select, sort and group the displayed rows, and list the values that filters offer."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from saliency_bench.board.known import CHECKED, CLAIMED, STATUSES
from saliency_bench.board.view.rows import FAMILIES, ShownRow
from saliency_bench.board.view.state import FILTERS, View
from saliency_bench.read.analysis.verdict import many_shapes

PER_PAGE = 100  # rows per part of a long table
ORDER = {"family": tuple(FAMILIES), "status": STATUSES}  # order of values that are not sorted alphabetically


@dataclass(frozen=True)
class RowGroup:
    """Comparable rows for one dataset, model and metric under a common heading.

    Submitters' own methods are in a separate group, because the origin of their maps is unknown.

    Attributes:
        baselines: All comparable baselines, even if they are not displayed.
        more: Whether the group continues a group in the previous part of the table.
        warning: Warning that comparing many explainers on few samples may raise the error rate, or "".
    """

    rows: list[ShownRow]
    baselines: list[ShownRow]
    more: bool = False
    warning: str = ""

    @property
    def is_verified(self) -> bool:
        """Return whether the board has verified the scores in this group."""
        return is_verified(self.rows[0])


def is_verified(row: ShownRow) -> bool:
    """Return True if the owner of the board has computed the scores of a row, or if there are no scores yet."""
    return row.status not in (CHECKED, CLAIMED) or not row.n


def matches(row: ShownRow, view: View, *, without: str = "") -> bool:
    """Return whether a row matches all filters. The filter `without` is ignored."""
    for name in FILTERS:
        wanted = getattr(view, name)
        if wanted and name != without and getattr(row, name) not in wanted:
            return False
    return all(word in row.text for word in view.search.casefold().split())


def chosen(rows: Sequence[ShownRow], view: View) -> list[ShownRow]:
    """Return the rows that match the filters, and the baselines to compare them with, in the order of the view."""
    shown = [row for row in rows if matches(row, view)]
    questions, keys = {row.question for row in shown}, {row.key for row in shown}
    shown += [row for row in rows if row.baseline and row.question in questions and row.key not in keys]
    return ordered(shown, view)


def ordered(rows: Sequence[ShownRow], view: View) -> list[ShownRow]:
    """Sort rows by score (best first under each heading) or by a different column (in a single list).

    Missing values come last. When sorting by score, unverified rows come after all other rows.
    """
    if view.sort == "score":
        return sorted(rows, key=lambda row: (*_heading(row), *_by_score(row, view.reverse), row.explainer, row.key))
    value = SORTED_BY[view.sort]
    present = [row for row in rows if value(row) is not None]
    present.sort(key=lambda row: (row.explainer.casefold(), *_heading(row), row.key))
    present.sort(key=value, reverse=view.reverse)  # stable
    return present + [row for row in rows if value(row) is None]


def _heading(row: ShownRow) -> tuple:
    # With hidden masks, all rows are ranked together, including rows that are not scored yet.
    apart = row.own_method and row.attempts is None and row.n > 0
    family = list(FAMILIES).index(row.family)
    return (not is_verified(row), row.dataset, row.model, family, row.metric, row.question, apart)


def _by_score(row: ShownRow, reverse: bool) -> tuple[bool, float]:
    """Return the key for sorting rows by score: best first unless reversed. Rows without a value come last."""
    if row.value is None:
        return True, 0.0
    return False, row.value if row.higher_is_better == reverse else -row.value


SORTED_BY: dict[str, Callable[[ShownRow], Any]] = {
    "explainer": lambda row: row.explainer.casefold(),
    "dataset": lambda row: row.dataset.casefold(),
    "model": lambda row: row.model.casefold(),
    "metric": lambda row: row.metric,
    "rank": lambda row: row.rank or row.rank_if_true,
    "n": lambda row: row.n,
    "status": lambda row: STATUSES.index(row.status),
    "passes": lambda row: row.passes,
    "seconds": lambda row: row.seconds,
    "submitters": lambda row: tuple(name.casefold() for name in row.submitters),
}


def page_of(rows: Sequence[ShownRow], number: int) -> tuple[list[ShownRow], int, int]:
    """Return (rows in one part of a long table, number of this part, total number of parts)."""
    parts = max(1, -(-len(rows) // PER_PAGE))
    number = min(number, parts)
    return list(rows[(number - 1) * PER_PAGE : number * PER_PAGE]), number, parts


def grouped(rows: Sequence[ShownRow], everything: Iterable[ShownRow], before: ShownRow | None = None) -> list[RowGroup]:
    """Group rows under headings.

    Args:
        rows: Rows sorted by score.
        everything: All rows of the board. The baselines of the headings are taken from these.
        before: Last row of the previous part of the table.
    """
    baselines: dict[str, list[ShownRow]] = {}
    ranked: dict[str, list[ShownRow]] = {}
    for row in everything:
        if row.rank:
            ranked.setdefault(row.question, []).append(row)
        if row.baseline:
            baselines.setdefault(row.question, []).append(row)
    groups: list[RowGroup] = []
    for row in rows:
        if not groups or _heading(groups[-1].rows[0]) != _heading(row):
            shown = sorted(baselines.get(row.question, []), key=lambda baseline: _by_score(baseline, False))
            is_more = before is not None and _heading(before) == _heading(row) and not groups
            rivals = ranked.get(row.question, [])
            warning = many_shapes(len(rivals), min((rival.clusters for rival in rivals), default=0))
            groups.append(RowGroup([], shown, is_more, " ".join(warning)))
        groups[-1].rows.append(row)
    return groups


def choices(rows: Sequence[ShownRow], view: View) -> dict[str, list[str]]:
    """Return {filter: values to offer}.

    A filter offers the values in the rows that match all other filters, and its selected values.
    """
    options: dict[str, list[str]] = {}
    for name in FILTERS:
        values = {getattr(row, name) for row in rows if matches(row, view, without=name)}
        values |= set(getattr(view, name))
        options[name] = [value for value in ORDER[name] if value in values] if name in ORDER else _alphabetical(values)
    return options


def _alphabetical(values: Iterable[str]) -> list[str]:
    return sorted(values, key=str.casefold)


def only_known(view: View, rows: Sequence[ShownRow]) -> View:
    """Remove filter values that do not occur on the board, such as those from an old URL."""
    kept: dict[str, Any] = {}
    for name in FILTERS:
        if wanted := getattr(view, name):
            present = {getattr(row, name) for row in rows}
            kept[name] = tuple(value for value in wanted if value in present)
    return replace(view, **kept)
