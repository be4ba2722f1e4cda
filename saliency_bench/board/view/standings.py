"""Tables of scores across datasets. The board's rows for the core are grouped by metric and passed to `overall`."""

from dataclasses import dataclass
from functools import cached_property

from saliency_bench.board.known import CHECKED, RUN
from saliency_bench.board.row import Row
from saliency_bench.board.view.archive import Archive
from saliency_bench.board.view.core import Core, CoreCell, not_fixed
from saliency_bench.board.view.overall import Overall, Scored, overall
from saliency_bench.board.view.rows import ShownRow
from saliency_bench.utils.hashing import hash_of


@dataclass(frozen=True)
class OverallTable:
    """The table of one metric over the datasets `core`, or the `problem` that prevents its computation."""

    metric: str
    family: str
    higher_is_better: bool
    core: list[str]
    rows: list[Overall]
    problem: str = ""


class Standings:
    """One table per metric. Each table is computed when it is first displayed."""

    def __init__(self, archive: Archive, core: Core | None):
        self.archive, self.core = archive, core
        self._tables: dict[str, OverallTable] = {}

    @cached_property
    def problems(self) -> list[str]:
        """Datasets and models of the core that are not published yet."""
        return not_fixed(self.core.datasets) if self.core else []

    @cached_property
    def metrics(self) -> list[str]:
        """Metrics that have rows in the core."""
        return sorted({shown.metric for _, shown, _ in self._in_core if shown.family != "other"})

    @cached_property
    def _in_core(self) -> list[tuple[CoreCell, ShownRow, Row]]:
        """Rows that match the core's dataset and model by hash and use the default settings."""
        core = self.core.datasets if self.core else []
        cells = {(cell.fingerprint, cell.split, cell.digest): cell for cell in core if cell.fixed}
        rows = []
        for shown, row in self.archive.by_key.values():
            setting = row.result.setting
            cell = cells.get((setting.fingerprint, setting.split, setting.classifier))
            if cell is not None and shown.family in cell.families and not shown.asks and not row.cell.aggregate:
                rows.append((cell, shown, row))
        return rows

    def table(self, metric: str) -> OverallTable:
        """Return the table of a metric."""
        if metric not in self._tables:
            self._tables[metric] = self._compute(metric)
        return self._tables[metric]

    def _compute(self, metric: str) -> OverallTable:
        rows_of_metric = [
            entry for entry in self._in_core if entry[1].metric == metric and entry[1].status in (RUN, CHECKED)
        ]
        first = next(shown for _, shown, _ in self._in_core if shown.metric == metric)
        cells = self.core.of_family(first.family) if self.core else []
        names = [cell.dataset for cell in cells]
        about = metric, first.family, first.higher_is_better, names
        if missing := not_fixed(cells):
            return OverallTable(*about, [], f"not published yet: {'; '.join(missing)}")
        scored, baselines = self._scored(rows_of_metric)
        rows = overall(scored, names, frozenset(baselines), first.higher_is_better)
        return OverallTable(*about, rows)

    def _scored(self, core_rows: list[tuple[CoreCell, ShownRow, Row]]) -> tuple[dict[str, dict[str, Scored]], set[str]]:
        """Return ({explainer: {dataset: scores}}, baselines).

        If rows contradict each other, the row whose explainer the board has run is used, if there is exactly one such
        row. Otherwise, none of the rows is used.
        """
        scored: dict[str, dict[str, Scored]] = {}
        baselines = set()
        rivals: dict[tuple[str, str], list[tuple[ShownRow, Row]]] = {}
        for cell, shown, row in core_rows:
            rivals.setdefault((_name(shown, row), cell.dataset), []).append((shown, row))
        for (name, dataset), rows in rivals.items():
            official = [pair for pair in rows if pair[0].status == RUN]
            if len(official or rows) > 1:
                continue
            shown, row = (official or rows)[0]
            scored.setdefault(name, {})[dataset] = self.archive.sampled(row)
            baselines |= {name} if shown.baseline else set()
        return scored, baselines


def _name(shown: ShownRow, row: Row) -> str:
    """Return a name that identifies an explainer across datasets. For a submitter's method, it includes the version."""
    if not shown.own_method:
        return shown.explainer
    return f"{row.cell.explainer} ({hash_of(str(row.cell.explainer_version))[:6]})"


def best_sets(tables: list[OverallTable]) -> dict[str, tuple[int, int]]:
    """Return {explainer: (number of metrics on which it is in the best set, number on which it has a rank)}."""
    counts: dict[str, tuple[int, int]] = {}
    for table in tables:
        several = any(result.rank and result.rank[0] > 1 for result in table.rows)
        for result in table.rows:
            if result.rank and not result.baseline:
                best, ranked = counts.get(result.name, (0, 0))
                counts[result.name] = best + (several and result.best), ranked + 1
    return counts
