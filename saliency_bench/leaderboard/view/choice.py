"""Which rows are shown, in which order, and what can be chosen from."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from saliency_bench.leaderboard.view.rows import FAMILIES, ShownRow
from saliency_bench.leaderboard.view.state import FILTERS, STATUSES, View

PER_PAGE = 100  # rows of a long table
ORDER = {"family": tuple(FAMILIES), "status": STATUSES}  # of values that have one


@dataclass(frozen=True)
class Group:
    """Rows that can be compared, of one dataset, model and metric, under one heading.

    Attributes:
        rows: that are shown.
        baselines: all, whatever is shown.
        more: the heading was on the page before.
    """

    rows: list[ShownRow]
    baselines: list[ShownRow]
    more: bool = False


def matches(row: ShownRow, view: View, *, without: str = "") -> bool:
    """Return whether a row passes all filters, or all but the one named `without`."""
    for name in FILTERS:
        wanted = getattr(view, name)
        if wanted and name != without and getattr(row, name) not in wanted:
            return False
    return all(word in row.text for word in view.search.casefold().split())


def chosen(rows: Sequence[ShownRow], view: View) -> list[ShownRow]:
    """Return the rows that pass the filters, with the baselines of their questions, in the order of the view."""
    passing = [row for row in rows if matches(row, view)]
    questions, keys = {row.question for row in passing}, {row.key for row in passing}
    passing += [row for row in rows if row.baseline and row.question in questions and row.key not in keys]
    return ordered(passing, view)


def ordered(rows: Sequence[ShownRow], view: View) -> list[ShownRow]:
    """Return rows by score, the best first within each comparison; by another column all in one list, None last."""
    if view.sort == "score":
        return sorted(rows, key=lambda row: (*_heading(row), *_by_score(row, view.reverse), row.explainer, row.key))
    value = SORTED_BY[view.sort]
    known = [row for row in rows if value(row) is not None]
    known.sort(key=lambda row: (row.explainer.casefold(), *_heading(row), row.key))
    known.sort(key=value, reverse=view.reverse)  # stable
    return known + [row for row in rows if value(row) is None]


def _heading(row: ShownRow) -> tuple:
    """Return what rows under one heading share."""
    return (row.dataset, row.model, list(FAMILIES).index(row.family), row.metric, row.question)


def _by_score(row: ShownRow, reverse: bool) -> tuple[bool, float]:
    """Return what rows are sorted by."""
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
    """Return (the rows of a part of a long table, its number, how many parts there are)."""
    parts = max(1, -(-len(rows) // PER_PAGE))
    number = min(number, parts)
    return list(rows[(number - 1) * PER_PAGE : number * PER_PAGE]), number, parts


def grouped(rows: Sequence[ShownRow], everything: Iterable[ShownRow], before: ShownRow | None = None) -> list[Group]:
    """Return rows in the order by score under a heading for each comparison.

    Args:
        rows: of a part of a table.
        everything: all rows.
        before: the last row of the part before.
    """
    baselines: dict[str, list[ShownRow]] = {}
    for row in everything:
        if row.baseline:
            baselines.setdefault(row.question, []).append(row)
    groups: list[Group] = []
    for row in rows:
        if not groups or groups[-1].rows[0].question != row.question:
            of_question = sorted(baselines.get(row.question, []), key=lambda baseline: _by_score(baseline, False))
            groups.append(Group([], of_question, before is not None and before.question == row.question and not groups))
        groups[-1].rows.append(row)
    return groups


def choices(rows: Sequence[ShownRow], view: View) -> dict[str, list[str]]:
    """Return {filter: the values it can take under all other filters}; values that are chosen stay among them."""
    by_filter: dict[str, list[str]] = {}
    for name in FILTERS:
        values = {getattr(row, name) for row in rows if matches(row, view, without=name)}
        values |= set(getattr(view, name))
        by_filter[name] = (
            [value for value in ORDER[name] if value in values] if name in ORDER else _alphabetical(values)
        )
    return by_filter


def _alphabetical(values: Iterable[str]) -> list[str]:
    """Return texts sorted as people sort them."""
    return sorted(values, key=str.casefold)


def only_known(view: View, rows: Sequence[ShownRow]) -> View:
    """Return a view without values that no row of the board has, such as those of an old address."""
    kept: dict[str, Any] = {}
    for name in FILTERS:
        if wanted := getattr(view, name):
            present = {getattr(row, name) for row in rows}
            kept[name] = tuple(value for value in wanted if value in present)
    return replace(view, **kept)
