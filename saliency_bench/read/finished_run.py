"""Python interface to a finished run: the class `Run`, returned by `run` and `load_run`."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import datasets
import pyarrow.parquet as pq

from saliency_bench import notebook_views
from saliency_bench.read import records
from saliency_bench.read.accuracy import below_chance
from saliency_bench.read.analysis.correctness import by_correctness
from saliency_bench.read.analysis.data_frames import check
from saliency_bench.read.analysis.differences import differences
from saliency_bench.read.analysis.paper_table import PaperTable, PaperTables, table_of_cells
from saliency_bench.read.analysis.verdict import Verdict
from saliency_bench.read.cell import CellResult, best, read_cells
from saliency_bench.read.run_folder import load_maps, read_run
from saliency_bench.read.statistics.ranking import read_contrasts
from saliency_bench.read.statistics.reliability import FILE as RELIABILITY
from saliency_bench.read.statistics.reliability import read_reliability, reliability_line
from saliency_bench.read.stored_maps import StoredMaps
from saliency_bench.read.summary import covered, in_short, lines_below, maps_line, misfits, table, table_rows

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, repr=False)
class Run(PaperTables):
    """A finished run. `print(run)` shows the same text as the command `run`.

    Attributes:
        folder: Folder of the run.
        summary: Contents of summary.json; {} in a process other than the main one.
        complete: Whether all scores already existed in the folder, so that nothing was computed.
    """

    folder: Path
    summary: dict
    complete: bool = False

    @property
    def report(self) -> Path:
        """Return the path of the report page."""
        return self.folder / "report.html"

    def records(self) -> datasets.Dataset:
        """Return the records: one row per sample, explainer and metric, and one per named part of a score."""
        return self._rows("records")

    def predictions(self) -> datasets.Dataset:
        """Return the classifier's prediction for each sample: logits, predicted class, and whether it is correct."""
        return self._rows("predictions")

    def map_values(self) -> datasets.Dataset:
        """Return the stored values of each map: a row per explainer and sample, or no rows if none are stored."""
        if not (self.folder / RELIABILITY).exists():
            return datasets.Dataset(records.RELIABILITY.empty_table())
        return datasets.Dataset(pq.read_table(self.folder / RELIABILITY))

    def _rows(self, name: str) -> datasets.Dataset:
        return datasets.Dataset(pq.read_table(self.folder / f"{name}.parquet"))

    def maps(self) -> dict[str, StoredMaps]:
        """Return {explainer: {image id: map (H, W)}} of a run with `keep_maps`, like `load_maps`."""
        return load_maps(self)

    @property
    def verdict(self) -> list[str]:
        """Return sentences that name the explainers that beat the baselines, and the best explainer."""
        return Verdict(self.cells, read_contrasts(self.summary["comparisons"])).sentences()

    @property
    def cells(self) -> list[CellResult]:
        """Return one result per explainer and metric, with its value, interval, ranks, n and omitted samples."""
        return read_cells(self.summary["cells"])

    @property
    def lines(self) -> list[str]:
        """Return the lines below the table; the last one names the page of the run."""
        about = [maps_line(self.summary, self.cells), reliability_line(self.summary, self.cells)]
        short = in_short(self.summary, self.cells)
        return [*self.verdict, *misfits(self.summary), *filter(None, about), short, f"report: {self.report}"]

    @property
    def doubt(self) -> str:
        """Return a warning about the run as a whole, such as accuracy below chance, or "" if there is none."""
        other = self.summary["other_model"]
        doubt_of_other = below_chance(other) if other else ""
        return below_chance(self.summary["model"]) or (doubt_of_other and f"other model: {doubt_of_other}")

    def compare(self, other: "Run | str | Path") -> "pd.DataFrame":
        """Compare two runs sample by sample, on the explainers and metrics that they share.

        Args:
            other: A run over the same dataset and split, or its folder.

        Returns:
            A row per explainer and metric. `mean` is the mean difference (other run minus this run) over the `n`
            samples that both runs scored, with the 95 % interval `low` to `high`. `p` is from a paired test, which
            needs at least 50 clusters, and is adjusted over all rows. `better`, `equal` and `worse` are the shares of
            samples on which the other run scores better, equally or worse.

        Raises:
            UserError: The runs use different datasets or share no explainer and metric, or a folder contains no
                finished run.
        """
        import pandas as pd

        rows = differences(self.folder, other.folder if isinstance(other, Run) else other)
        return pd.DataFrame(rows).drop(columns=["cell_ids", "largest"], errors="ignore")

    def check(
        self, *requirements: str, against: "Run | str | Path | None" = None, strict: bool = False
    ) -> "pd.DataFrame":
        """Return a row per requirement. All requirements are tested jointly, as in `sb.check`.

        run.check("gradcam:saliency_miou>=0.3", "gradcam:saliency_miou>random")["passed"].all()
        """
        return check(self, *requirements, against=against, strict=strict)

    def to_pandas(self) -> "pd.DataFrame":
        """Return a row per explainer and metric: value, 95 % interval, samples, ranks, and whether it is best.

        `best` is as in the printed table. `beats_baselines` is None if the run has no baseline to compare with.
        `rare_failures` is True if the interval is wider because the samples cannot rule out rare extreme scores.
        Unknown numbers are NaN. The value is NaN if no sample has a score. The rank is NaN for a baseline and if there
        are too few samples. Your own function has one row per version, and `explainer_version` or `metric_version`
        contains the version as text. `cell_id` is the same as in the records. `reliability` is the median over the maps
        of an explainer that averages random draws.
        """
        import pandas as pd

        cells, marked = self.cells, best(self.cells)
        known = read_reliability(self.summary)
        columns = {
            "explainer": [cell.explainer_text for cell in cells],
            "metric": [cell.metric_text for cell in cells],
            "explainer_version": [str(cell.explainer_version) for cell in cells],
            "metric_version": [str(cell.metric_version) for cell in cells],
            "cell_id": [cell.cell_id for cell in cells],
            "higher_is_better": [cell.higher_is_better for cell in cells],
            "value": [cell.value for cell in cells],
            "low": [None if cell.ends is None else cell.ends[0] for cell in cells],
            "high": [None if cell.ends is None else cell.ends[1] for cell in cells],
            "n": [cell.n for cell in cells],
            "clusters": [cell.clusters for cell in cells],
            "rank_low": [None if cell.rank is None else cell.rank[0] for cell in cells],
            "rank_high": [None if cell.rank is None else cell.rank[1] for cell in cells],
            "best": [cell.cell_id in marked for cell in cells],
            "beats_baselines": pd.Series([cell.beats_baselines for cell in cells], dtype=object),
            "rare_failures": [cell.rare for cell in cells],
            "baseline": [cell.baseline for cell in cells],
            "reliability": [known[key].median if (key := cell.explainer_id) in known else None for cell in cells],
        }
        kinds = dict.fromkeys(("value", "low", "high", "rank_low", "rank_high", "reliability"), float)
        return pd.DataFrame(columns).astype(kinds)

    def by_correct(self) -> "pd.DataFrame":
        """Return separate mean scores for images with a correct prediction (`right`) and a wrong one (`wrong`).

        Returns:
            A row per explainer, metric and group of `images`: `value`, its 95 % interval `low` to `high`, and `n`.

        Raises:
            UserError: No image has a known label.
        """
        import pandas as pd

        means = by_correctness(read_run(self.folder))
        return pd.DataFrame(means.rows, columns=list(means.header)).astype(
            dict.fromkeys(("value", "low", "high"), float)
        )

    def paper_table(self) -> PaperTable:
        """Return the table that `to_latex` and `to_markdown` write."""
        names = (self.summary[kind]["id"] for kind in ("model", "dataset"))
        return table_of_cells(self.cells, covered(self.summary), " on ".join(names))

    def __str__(self) -> str:
        if not self.summary:
            return f"written by another process: {self.folder}"
        return "\n".join([table(self.cells, covered(self.summary)), "", *filter(None, [*self.lines, self.doubt])])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """Return the printed table and the lines below it as HTML, for notebooks."""
        header, *rows = table_rows(self.cells, covered(self.summary))
        best_at = [
            (row, place) for row, cells in enumerate(rows) for place, text in enumerate(cells) if " best" in text
        ]
        names = (self.summary[kind]["id"] for kind in ("model", "dataset"))
        title = f"{' on '.join(names)}, {covered(self.summary)} samples"
        below = [*lines_below(self.cells), *self.lines, self.doubt]
        shown = [notebook_views.paragraph(title, strong=True), notebook_views.table(rows, header, best_at)]
        return "\n".join(shown + [notebook_views.paragraph(line) for line in below if line])


def load_run(folder: str | Path) -> Run:
    """Load a finished run as `run` returned it, after checking all files of the run.

        run = sb.load_run("runs/first")
        print(run)
        run.to_pandas().pivot(index="explainer", columns="metric", values="value")

    Args:
        folder: Folder of the run, the `out` of `run`.

    Raises:
        UserError: The folder contains no finished run, or a file in the folder is damaged.
    """
    return Run(Path(folder).resolve(), read_run(Path(folder)).as_json(), complete=True)
