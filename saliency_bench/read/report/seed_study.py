"""`sb.seed_study`: the results of several trained networks as one table and one figure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from saliency_bench.errors import UserError
from saliency_bench.read.analysis.paper_table import (
    BOLD,
    BOLD_ALONE,
    Line,
    PaperTable,
    PaperTables,
    TableEntry,
    check_labels,
)
from saliency_bench.read.analysis.seed_studies import INTERVAL_FROM, NetworkMean, Networks, over_networks
from saliency_bench.read.cell import FEWEST_TRAININGS, rank_text
from saliency_bench.read.finished_run import folder_of, read_run
from saliency_bench.read.summary import aligned
from saliency_bench.utils.messages import counted

if TYPE_CHECKING:
    import pandas as pd

OTHERS = "intervals allow for the variation between images and between training runs"


@dataclass(frozen=True, repr=False)
class SeedStudy(PaperTables):
    """Results of several networks: mean, spread over networks, and interval for each explainer and metric.

    Attributes:
        folders: Folders of the runs.
        networks: Results with `rows`, `accuracies`, and `left_out`, which names the cells that some runs lack.
    """

    folders: tuple[Path, ...]
    networks: Networks

    @property
    def rows(self) -> list[NetworkMean]:
        """Return all results, sorted by the explainers' means on the first metric, best first, with baselines last."""
        rows = self.networks.rows
        means = {row.cell.explainer_id: _oriented(row) for row in rows if row.cell.metric_id == rows[0].cell.metric_id}
        return sorted(rows, key=lambda row: (row.cell.baseline, -means.get(row.cell.explainer_id, -np.inf)))

    def to_pandas(self) -> "pd.DataFrame":
        """Return a data frame with one row per explainer and metric.

        `value` is the mean over all `networks` and the `n` images that have a score in every network's run. `spread` is
        the standard deviation of the networks' means. `low` to `high` is the 95 % interval, which allows for the
        variation between images and between training runs. The mean of each network is in the column named after the
        folder of its run. Unknown numbers are NaN.
        """
        import pandas as pd

        columns = _column_names(self.folders)
        frame = pd.DataFrame([
            {"explainer": row.explainer, "metric": row.metric, "higher_is_better": row.cell.higher_is_better,
             "value": row.estimate.value, "spread": row.spread, "low": row.estimate.low, "high": row.estimate.high,
             "n": row.estimate.n, "networks": len(self.folders),
             "rank_low": row.rank[0] if row.rank else None, "rank_high": row.rank[1] if row.rank else None,
             "best": row.best, "baseline": row.cell.baseline} | dict(zip(columns, row.means, strict=True))
            for row in self.rows
        ])  # fmt: skip
        return frame.astype({"rank_low": float, "rank_high": float})

    def as_dict(self) -> dict[str, Any]:
        """Return plain data, with None for unknown numbers."""
        rows = self.to_pandas()
        return {
            "runs": [str(folder) for folder in self.folders],
            "accuracies": list(self.networks.accuracies),
            "left_out": self.networks.left_out,
            "rows": rows.astype(object).where(rows.notna(), None).to_dict("records"),
        }

    def paper_table(self) -> PaperTable:
        """Return the table with mean ± spread and the interval, for each explainer and metric."""
        metrics = list(dict.fromkeys(row.metric for row in self.rows))
        by_names = {(row.explainer, row.metric): row for row in self.rows}
        arrows = {row.metric: "↑" if row.cell.higher_is_better else "↓" for row in self.rows}
        baselines = {row.explainer: row.cell.baseline for row in self.rows}
        lines = [Line((name,), [_entry(by_names.get((name, metric))) for metric in metrics], baseline)
                 for name, baseline in baselines.items()]  # fmt: skip
        bold = BOLD if any(baselines.values()) else BOLD_ALONE
        notes = tuple(note for note in self.notes if note != OTHERS)  # `brackets` contains this information
        brackets = "In brackets: 95 % intervals, allowing for the variation between images and between training runs"
        return PaperTable(("explainer",), tuple(metrics), tuple(arrows[metric] for metric in metrics), lines, notes,
                          bold, brackets)  # fmt: skip

    @property
    def notes(self) -> list[str]:
        """Return the remarks that explain the table."""
        count = len(self.folders)
        images = counted(self.rows[0].used, "image")
        lines = [f"mean over {counted(count, 'network')} and {images} ± standard deviation over networks"]
        if count < INTERVAL_FROM:
            lines.append(f"two networks are too few for an interval; train {INTERVAL_FROM} or more")
        elif any(np.isfinite(row.estimate.low) for row in self.rows):
            lines.append(OTHERS)
        if count < FEWEST_TRAININGS:
            lines.append(f"explainers are not ranked with fewer than {FEWEST_TRAININGS} networks")
        if accuracies := self.networks.accuracies:
            lines.append(f"accuracy {100 * np.mean(accuracies):.1f} % ± {100 * np.std(accuracies, ddof=1):.1f} %")
        if left_out := self.networks.left_out:
            lines.append(f"left out, because some runs lack these cells: {', '.join(left_out)}")
        return lines

    def draw(self, out: str | Path, labels: Mapping[str, str] | None = None) -> Path:
        """Draw means, intervals and the mean of each network, with one panel per metric, and return the path.

        Args:
            out: File to write; the suffix (.pdf, .svg or .png) determines the format.
            labels: {name of an explainer or metric: text to print instead}.

        Raises:
            UserError: The suffix is not supported, the file cannot be written, or a name in `labels` is unknown.
        """
        from saliency_bench.read.report.plots import seed_plot  # imports matplotlib

        check_labels(self.paper_table(), labels or {})
        seed_plot(self.rows, Path(out), labels or {})
        return Path(out)

    def __str__(self) -> str:
        table = self.paper_table()
        header = [*table.header, *map(" ".join, zip(table.columns, table.arrows, strict=True))]
        rows = [[*line.names, *map(_text, line.entries)] for line in table.lines]
        remarks = dict.fromkeys(note for line in table.lines for entry in line.entries for note in entry.notes)
        return "\n".join([aligned([header, *rows]), "", *self.notes, *remarks])

    __repr__ = __str__


def _oriented(row: NetworkMean) -> float:
    """Return the mean, negated if lower is better; minus infinity if there is no mean."""
    value = row.estimate.value if row.cell.higher_is_better else -row.estimate.value
    return value if np.isfinite(value) else -np.inf


def _entry(row: NetworkMean | None) -> TableEntry:
    if row is None:
        return TableEntry()
    value, low, high = row.estimate.known
    if value is None:
        return TableEntry(notes=("no image has a score for every network",))
    ends = None if low is None or high is None else (low, high)
    notes = ["an aggregate, without an interval that allows for the variation between images"] * row.cell.aggregate
    notes += [f"over {row.estimate.n:,} of {row.used:,} images: those with a score for every network"] * (
        row.estimate.n != row.used and not row.cell.aggregate
    )
    return TableEntry(value, ends, row.spread, rank_text(row.rank), row.best, tuple(notes))


def _text(entry: TableEntry) -> str:
    if entry.value is None:
        return "-"
    ends = f" [{entry.ends[0]:.3f}, {entry.ends[1]:.3f}]" if entry.ends else ""
    return f"{entry.value:.3f} ± {entry.spread:.3f}{ends}" + f" #{entry.rank}" * bool(entry.rank) + " best" * entry.best


def _column_names(folders: Sequence[Path]) -> list[str]:
    """Return a name for each folder: the last part of its path, or the whole path if last parts are not unique."""
    names = [folder.name for folder in folders]
    return names if len(set(names)) == len(names) else [str(folder) for folder in folders]


def seed_study(runs: Sequence[Any]) -> SeedStudy:
    """Return the results of several networks, such as networks trained with different seeds, as one table.

        runs = [sb.run(dataset=..., model=f"models/seed-{seed}", ..., out=f"runs/seed-{seed}") for seed in range(3)]
        study = sb.seed_study(runs)
        print(study.to_latex(digits=2))
        study.draw("seeds.pdf")

    Args:
        runs: For each network, a result of `run` or its folder. The runs must have the same dataset, settings,
            explainers and metrics.

    Raises:
        UserError: There are fewer than two networks, the runs differ in more than the network, or the runs share no
            explainer and metric.
    """
    if isinstance(runs, str | Path) or not isinstance(runs, Sequence):
        raise UserError("a seed study needs a list of runs, one per network")
    read = [read_run(folder_of(run)) for run in runs]
    return SeedStudy(tuple(run.folder for run in read), over_networks(read))
