"""The places of a table: the names along its axes, and which of them its runs have."""

from collections.abc import Iterator, Mapping
from itertools import product

from saliency_bench.engine.suites.schema import Suite, Table

Key = tuple[str, ...]


def places_of(suite: Suite, table: Table) -> tuple[list[dict[str, str]], list[Key], list[Key]]:
    """({axis: name} of each number of a table, its rows, its columns)"""
    axes = {str(axis): names_of(suite, table, axis) for axis in (*table.rows, *table.columns)}
    places: list[str] = [*table.rows, *table.columns]
    kept: list[dict[str, str]] = []
    for names in product(*(axes[axis] for axis in places)):
        place = dict(zip(places, names, strict=True))
        if exists(suite, table, place):
            kept.append(place)
    rows = list(dict.fromkeys(tuple(place[axis] for axis in table.rows) for place in kept))
    columns = list(dict.fromkeys(tuple(place[axis] for axis in table.columns) for place in kept))
    return kept, rows, columns


def names_of(suite: Suite, table: Table, axis: str) -> list[str]:
    """The names along an axis: what the table shows, then what else the runs have."""
    runs = [suite.runs[name] for name in table.runs]
    known = {
        "dataset": [name for run in runs for name in run.datasets],
        "model": [name for run in runs for name in run.models],
        "explainer": [name for run in runs for name in run.explainers],
        "variant": list(table.variants),
        "value": list(table.values),
    }[axis]
    shown = {str(name): names for name, names in table.show.items()}
    return list(dict.fromkeys([*shown.get(axis, ()), *known]))


def exists(suite: Suite, table: Table, place: dict[str, str]) -> bool:
    """Whether a run of the table has this dataset, model and explainer."""
    return any(_matches(suite, name, place) for name in table.runs)


def _matches(suite: Suite, run: str, place: Mapping[str, str]) -> bool:
    entry = suite.runs[run]
    axes = {"dataset": entry.datasets, "model": entry.models, "explainer": entry.explainers}
    return all(place[axis] in names for axis, names in axes.items() if axis in place)


def over_of(suite: Suite, table: Table, place: dict[str, str]) -> Iterator[dict[str, str]]:
    """The places that a number is made of: itself, or one for each of what the table takes together."""
    for names in product(*(names_of(suite, table, axis) for axis in table.over)):
        taken: dict[str, str] = dict(zip(map(str, table.over), names, strict=True))
        one = place | taken
        if exists(suite, table, one):
            yield one


def only(suite: Suite, table: Table, axis: str, place: Mapping[str, str]) -> str:
    """The name on an axis that a table has no rows or columns for: the only one there is."""
    if axis in place:
        return place[axis]
    (name,) = names_of(suite, table, axis)  # as the suite was checked
    return name
