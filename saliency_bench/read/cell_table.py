"""Arrange the cells of a run as a table: explainers are rows, metrics are columns."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from saliency_bench.read.cell import CellResult, best, explainer_names, metric_names
from saliency_bench.read.summary import in_order


@dataclass(frozen=True)
class ExplainerRow:
    """An explainer with its options: one row of the tables and plots.

    Attributes:
        explainer_id: Id of the explainer.
        text: Name with options; two versions of an explainer have the same text.
        name: Unique name: `text`, followed by the version if two explainers have the same text.
        baseline: Whether the explainer ignores the network.
    """

    explainer_id: str
    text: str
    name: str
    baseline: bool


@dataclass(frozen=True)
class MetricColumn:
    """A metric with its options: one column of the tables, and one plot."""

    metric_id: tuple[str, int | str]
    name: str
    higher_is_better: bool

    @property
    def arrow(self) -> str:
        """Return an arrow that shows whether higher or lower is better."""
        return "↑" if self.higher_is_better else "↓"

    @property
    def direction(self) -> str:
        """Return "higher is better" or "lower is better"."""
        return "higher is better" if self.higher_is_better else "lower is better"


class CellTable:
    """Cells with explainers as rows and metrics as columns."""

    def __init__(self, cells: Sequence[CellResult]):
        self.cells = cells
        self._by_ids = {(cell.explainer_id, cell.metric_id): cell for cell in cells}

    @cached_property
    def rows(self) -> list[ExplainerRow]:
        """Return the rows, sorted by the mean of the first metric, best first, with baselines last."""
        names = explainer_names(self.cells)
        rows = {
            cell.explainer_id: ExplainerRow(
                cell.explainer_id, cell.explainer_text, names[cell.explainer_id], cell.baseline
            )
            for cell in self.cells
        }
        return [rows[key] for key in in_order(self.cells)]

    @cached_property
    def columns(self) -> list[MetricColumn]:
        """Return the columns, one per metric."""
        names = metric_names(self.cells)
        columns = {cell.metric_id: MetricColumn(cell.metric_id, names[cell.metric_id], cell.higher_is_better)
                   for cell in self.cells}  # fmt: skip
        return list(columns.values())

    @cached_property
    def best(self) -> frozenset[str]:
        """Return the ids of the cells to mark as best."""
        return best(self.cells)

    def cell(self, row: ExplainerRow, column: MetricColumn) -> CellResult | None:
        """Return the cell of a row and column, if there is one."""
        return self._by_ids.get((row.explainer_id, column.metric_id))

    def cells_of_row(self, row: ExplainerRow) -> list[CellResult]:
        """Return the cells of an explainer."""
        return [cell for column in self.columns if (cell := self.cell(row, column))]

    def cells_of_column(self, column: MetricColumn) -> list[tuple[ExplainerRow, CellResult]]:
        """Return [(row, cell)] for the explainers that have a cell with this metric."""
        return [(row, cell) for row in self.rows if (cell := self.cell(row, column))]
