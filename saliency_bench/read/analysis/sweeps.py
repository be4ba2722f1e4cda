"""Sweeps: scores of a metric at several values of one option, with one curve per explainer."""

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from saliency_bench.errors import UserError
from saliency_bench.read.analysis.tables import Findings, Table, Value, dicts
from saliency_bench.read.cell import CellResult

if TYPE_CHECKING:
    from saliency_bench.read.finished_run import Run

HEADER = ("dataset", "model", "metric", "explainer", "option", "at", "value", "low", "high", "n")


def sweep(runs: Sequence["Run"], option: str | None = None) -> Findings:
    """Tabulate the value of a metric with its interval at each value of an option, with all other options equal.

    Args:
        runs: Runs with a metric at several values of an option.
        option: Name of the option. By default, every option with more than one value is tabulated.
    """
    rows: list[tuple[Value, ...]] = []
    for run in runs:
        for row in run.table.rows:
            rows += _of_explainer(run, row.name, run.table.cells_of_row(row), option)
    if not rows:
        which = "an option" if option is None else f"the option {option}"
        raise UserError(
            f"no metric in these runs was computed with more than one value of {which}; list the metric once per "
            "value, for example "
            "--metrics saliency_miou:threshold=0.3 saliency_miou:threshold=0.5 saliency_miou:threshold=0.7"
        )
    notes = ["Each 95 % interval is valid on its own; all values of a curve are computed on the same samples."]
    return Findings("sweep", [Table(HEADER, rows)], {"points": dicts(HEADER, rows)}, notes)


def _of_explainer(run: "Run", name: str, cells: Sequence[CellResult], wanted: str | None) -> list[tuple[Value, ...]]:
    families: dict[tuple[str, str, str], list[CellResult]] = {}
    for cell in cells:
        for option in cell.metric_options:
            rest = {key: value for key, value in cell.metric_options.items() if key != option}
            if wanted in (None, option):
                key = cell.metric, option, json.dumps([rest, cell.metric_version], sort_keys=True)
                families.setdefault(key, []).append(cell)
    rows: list[tuple[Value, ...]] = []
    for (metric, option, _), cells_of_family in families.items():
        if len(cells_of_family) > 1:
            subject = *run.subject, metric, name, option
            by_value = sorted(cells_of_family, key=lambda cell: _order(cell.metric_options[option]))
            rows += [
                (*subject, _plain(cell.metric_options[option]), cell.value, cell.low, cell.high, cell.n)
                for cell in by_value
            ]
    return rows


def _order(value: object) -> tuple[bool, float, str]:
    """Return a sort key that puts numbers in ascending order before strings."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return not is_number, float(value) if is_number else 0.0, str(value)  # type: ignore[arg-type]


def _plain(value: object) -> Value:
    is_plain = isinstance(value, str | int | float) and not isinstance(value, bool)
    return value if is_plain else json.dumps(value)  # type: ignore[return-value]
