"""The class `Run`: a finished run, as returned by `run` and `load_run` and as used by all analyses and reports."""

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from saliency_bench import notebook_views
from saliency_bench.errors import UserError
from saliency_bench.read import records
from saliency_bench.read.accuracy import below_chance
from saliency_bench.read.analysis.comparison import differing_question, largest_first
from saliency_bench.read.analysis.correctness import by_correctness
from saliency_bench.read.analysis.differences import differences
from saliency_bench.read.analysis.paper_table import PaperTable, PaperTables, table_of_cells
from saliency_bench.read.analysis.requirements import Requirement
from saliency_bench.read.analysis.requirements import check as check_requirements
from saliency_bench.read.analysis.verdict import Verdict
from saliency_bench.read.cell import CellResult, Interval, as_json, read_cells
from saliency_bench.read.cell_table import CellTable
from saliency_bench.read.identity import Identity
from saliency_bench.read.run_folder import (
    PREDICTED,
    CellScores,
    RunFiles,
    maps_in,
    read_files,
    read_parts,
    read_summary,
    read_table,
)
from saliency_bench.read.statistics.ranking import TEST, Contrast, compare, read_contrasts
from saliency_bench.read.statistics.reliability import FILE as RELIABILITY
from saliency_bench.read.statistics.reliability import Reliability, read_reliability, reliability_line
from saliency_bench.read.stored_maps import StoredMaps
from saliency_bench.read.summary import covered, in_short, lines_below, maps_line, misfits, table, table_rows
from saliency_bench.utils.messages import complain

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa
    from datasets import Dataset


@dataclass(frozen=True, repr=False)
class Run(PaperTables):
    """A finished run. `print(run)` shows the same text as the command `run`.

    The scores, examples and times are read from the folder and checked when they are first used.

    Attributes:
        folder: Folder of the run.
        summary: Content of summary.json; {} in a process other than the main one.
        complete: Whether all scores already existed in the folder, so that nothing was computed.
        files: Content of the other files if they have already been read.
        runs: Runs that were merged into this one; () for a run with its own folder.
        label: Text that distinguishes this run from other runs with the same dataset and model in an analysis.
    """

    folder: Path
    summary: dict
    complete: bool = False
    files: RunFiles | None = field(default=None, compare=False)
    runs: tuple["Run", ...] = field(default=(), compare=False)
    label: str = field(default="", compare=False)

    @cached_property
    def cells(self) -> list[CellResult]:
        """Return one result per explainer and metric, with its value, interval, ranks, n and omitted samples."""
        return read_cells(self.summary["cells"])

    @cached_property
    def table(self) -> CellTable:
        """Return the cells with explainers as rows and metrics as columns."""
        return CellTable(self.cells)

    def check_current(self) -> None:
        """Raise UserError if a later run has changed the folder since this object was created.

        All methods that read files call this method, so that they never combine two runs.
        """
        for run in self.runs:
            run.check_current()
        if not self.runs and self.summary and _state(read_summary(self.folder)) != _state(self.summary):
            raise UserError(f"{self.folder} has changed since this run was loaded; load the run again with load_run")

    @cached_property
    def _read_files(self) -> RunFiles:
        """Read the other files, unless a later run has changed the folder since this object was created."""
        if self.files is not None:
            return self.files
        self.check_current()
        return read_files(self.folder, self.cells)

    @property
    def scores(self) -> CellScores:
        """Return the score of each image for each cell, as arrays."""
        return self._read_files.scores

    @property
    def timings(self) -> dict:
        """Return the times of the last call of `run` in seconds, and its peak memory in bytes (timings.json)."""
        return self._read_files.timings

    @property
    def examples(self) -> dict[str, np.ndarray]:
        """Return the images, masks and thumbnails of the examples (examples.npz); {} if there are none."""
        return self._read_files.examples

    @property
    def samples(self) -> dict[str, dict]:
        """Return {image id: label, prediction and mask} of the examples."""
        return self._read_files.samples

    @property
    def identity(self) -> Identity | None:
        """Return the settings that all cells share; None if the folder has no run.json."""
        return self._read_files.identity

    @property
    def members(self) -> tuple["Run", ...]:
        """Return the runs that were merged into this one, or this run alone."""
        return self.runs or (self,)

    @cached_property
    def origins(self) -> dict[str, "Run"]:
        """Return {cell id: the run that computed the cell}. For merged runs, this is the run with the most samples."""
        return {cell.cell_id: run for run in reversed(largest_first(self.members)) for cell in run.cells}

    @property
    def subject(self) -> tuple[str, str]:
        """Return (dataset, model), which identify the run in tables. `label` follows the dataset in parentheses."""
        return self.dataset_id + f" ({self.label})" * bool(self.label), self.summary["model"]["id"]

    @property
    def dataset_id(self) -> str:
        """Return the id of the dataset."""
        return self.summary["dataset"]["id"]

    @property
    def seed(self) -> int:
        """Return the seed of the run. The bootstrap samples for its intervals are drawn with the same seed."""
        return self.summary.get("seed", 0)

    @cached_property
    def contrasts(self) -> list[Contrast]:
        """Return the comparisons of all pairs of explainers."""
        return read_contrasts(self.summary.get("comparisons", []))

    @cached_property
    def reliability(self) -> dict[str, Reliability]:
        """Return {explainer id: reliability of its maps} for explainers that average random draws."""
        return read_reliability(self.summary)

    @cached_property
    def accuracy(self) -> Interval:
        """Return the accuracy of the classifier with its interval."""
        return Interval.model_validate(self.summary["model"]["accuracy"])

    @property
    def samples_explained(self) -> int:
        """Return the number of explained samples. The last batch counts in full, because batches are not cut short."""
        dataset, size = self.summary["dataset"], self.summary["batch_size"]
        if only := self.summary.get("only"):
            return only["samples"]
        return min(-(-dataset["used"] // size) * size, dataset["samples"])

    def values_by_part(self, cell_ids: Collection[str]) -> dict[str, dict[str, np.ndarray]]:
        """Return {cell id: {part: values (n,) in the order of `scores.ids`, NaN if missing}}."""
        self.check_current()
        of_folder: dict[Path, list[str]] = {}
        for cell_id in cell_ids:
            of_folder.setdefault(self.origins[cell_id].folder, []).append(cell_id)
        values: dict[str, dict[str, np.ndarray]] = {}
        for folder, cells in of_folder.items():
            values |= read_parts(folder, cells, self.scores.ids)
        return values

    @cached_property
    def prediction_columns(self) -> dict[str, list[Any]]:
        """Return {column: values in the order of `scores.ids`, or None} for `correct` and `target_confidence`.

        An unknown value is None. A column is omitted if a folder lacks it, for example because an earlier version wrote
        the folder.
        """
        self.check_current()
        tables = [
            read_table(run.folder / "predictions.parquet", records.PREDICTIONS, ["image_id", *PREDICTED])
            for run in largest_first(self.members)
        ]
        columns = [name for name in PREDICTED if all(name in table.column_names for table in tables)]
        by_id = {row["image_id"]: row for table in tables for row in table.to_pylist()}
        return {name: [by_id.get(image_id, {}).get(name) for image_id in self.scores.ids] for name in columns}

    def _path(self, name: str) -> Path:
        """Return the path of a file of this run.

        Raises:
            UserError: The run is merged, so it has several folders, or the folder has changed.
        """
        self.check_current()
        if self.runs:
            raise UserError(f"merged runs have no common {name}; read the file of each run in `runs`")
        return self.folder / name

    @property
    def report(self) -> Path:
        """Return the path of the report page."""
        return self.folder / "report.html"

    def records(self) -> "Dataset":
        """Return the records: one row per sample, explainer and metric, and one per named part of a score."""
        return _dataset(read_table(self._path("records.parquet"), records.SCHEMA))

    def predictions(self) -> "Dataset":
        """Return the classifier's prediction for each sample: logits, predicted class, and whether it is correct."""
        return _dataset(read_table(self._path("predictions.parquet"), records.PREDICTIONS))

    def map_values(self) -> "Dataset":
        """Return the stored values of each map: a row per explainer and sample, or no rows if none are stored."""
        path = self._path(RELIABILITY)
        stored = self.reliability or path.exists()
        return _dataset(read_table(path, records.RELIABILITY) if stored else records.RELIABILITY.empty_table())

    def maps(self) -> dict[str, StoredMaps]:
        """Return {explainer: {image id: map (H, W)}} of a run with `keep_maps`, like `load_maps`."""
        return maps_in(self._path("maps").parent)

    @property
    def verdict(self) -> list[str]:
        """Return sentences that name the explainers that beat the baselines, and the best explainer."""
        return Verdict(self.cells, self.contrasts).sentences()

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
            other: A run on the same dataset and split, or its folder.

        Returns:
            A row per explainer and metric. `mean` is the mean difference (other run minus this run) over the `n`
            samples that both runs scored, with the 95 % interval `low` to `high`. `p` is from a paired test, which
            needs at least 50 clusters, and is adjusted over all rows. `better`, `equal` and `worse` are the fractions
            of samples on which the other run scores better than, the same as or worse than this run.

        Raises:
            UserError: The runs use different datasets or share no explainer and metric, or a folder contains no
                finished run.
        """
        import pandas as pd

        self.check_current()
        second = run_of(other)
        rows = differences(self, second)
        _report_settings(self, second)
        return pd.DataFrame(rows).drop(columns=["cell_ids", "largest"], errors="ignore")

    def check(
        self, *requirements: str, against: "Run | str | Path | None" = None, strict: bool = False
    ) -> "pd.DataFrame":
        """Check requirements of the run jointly, like `saliency-bench check`, and return a row per requirement.

            run.check("gradcam:saliency_miou>=0.3", "gradcam:saliency_miou>random")["passed"].all()

        Args:
            *requirements: "EXPLAINER:METRIC>=NUMBER" (or <=), or "EXPLAINER:METRIC>EXPLAINER" (or <).
            against: An earlier run; a requirement also fails if its explainer was significantly better in that run.
            strict: Whether an undecided requirement fails.

        Raises:
            UserError: No requirement is given, a requirement is invalid, a score does not exist or has too few samples,
                or the runs cannot be compared.
        """
        import pandas as pd

        if not requirements or not all(isinstance(text, str) for text in requirements):
            raise UserError('check needs requirements as separate strings, such as "gradcam:saliency_miou>=0.3"')
        self.check_current()
        earlier = None if against is None else run_of(against)
        name = "" if earlier is None else str(earlier.folder)
        checked = check_requirements(self, [Requirement.read(text) for text in requirements], earlier)
        if earlier is not None:
            _report_settings(self, earlier)
        return pd.DataFrame([row.as_dict() | {"passed": row.passes(strict), "line": row.line(name)} for row in checked])

    def to_pandas(self) -> "pd.DataFrame":
        """Return one row per explainer and metric, with the value, its 95 % interval, samples, ranks and `best`.

        `best` has the same meaning as in the printed table. `beats_baselines` is None if the run has no baseline to
        compare with. `rare_failures` is True if the interval was widened because the samples cannot rule out rare
        extreme scores. Unknown numbers are NaN. The value is NaN if no sample has a score. The rank is NaN for a
        baseline and if there are too few samples. For your own function, there is one row per version, and
        `explainer_version` or `metric_version` contains the version as a string. `cell_id` is the same as in the
        records. `reliability` is the median over the maps of an explainer that averages random draws.
        """
        import pandas as pd

        cells, marked, known = self.cells, self.table.best, self.reliability
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
        """Return separate mean scores for correctly predicted images (`right`) and wrongly predicted ones (`wrong`).

        Returns:
            A row per explainer, metric and group of `images`: `value`, its 95 % interval `low` to `high`, and `n`.

        Raises:
            UserError: No image has a known label.
        """
        import pandas as pd

        self.check_current()
        means = by_correctness(self)
        return pd.DataFrame(means.rows, columns=list(means.header)).astype(
            dict.fromkeys(("value", "low", "high"), float)
        )

    def paper_table(self) -> PaperTable:
        """Return the table that `to_latex` and `to_markdown` write."""
        names = (self.summary[kind]["id"] for kind in ("model", "dataset"))
        return table_of_cells(self.cells, covered(self.summary), " on ".join(names))

    def __hash__(self) -> int:
        return hash(self.folder)  # the summary is a dict, which cannot be hashed

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


def read_run(folder: Path) -> Run:
    """Read a finished run and check all its files. Unlike `load_run`, keep a relative path for messages.

    Raises:
        UserError: The folder contains no finished run, or a file cannot be read.
    """
    run = Run(folder, read_summary(folder), complete=True)
    run = replace(run, files=read_files(folder, run.cells))
    return run if run.summary.get("rank_test") == TEST else _ranked_anew(run)


def _ranked_anew(run: Run) -> Run:
    """Recompute the ranks and comparisons of a run that was ranked with a different version of the paired test."""
    contrasts, standings = compare(run.cells, run.scores.values, run.scores.codes(), run.seed, run.scores.parts)
    cells = [cell.model_copy(update=standings[cell.cell_id].as_dict()) for cell in run.cells]
    complain(f"{run.folder} was ranked with a different version of the paired test; its ranks are recomputed here")
    new = {"cells": as_json(cells), "comparisons": as_json(contrasts), "rank_test": TEST}
    return replace(run, summary=run.summary | new)


def run_of(run: Any) -> Run:
    """Return the run in a folder. A `Run` is returned unchanged after `check_current`.

    Raises:
        UserError: The folder contains no finished run, or has changed since the `Run` was created.
    """
    if isinstance(run, Run):
        run.check_current()
        return run
    return read_run(folder_of(run))


def folder_of(run: Any) -> Path:
    """Return the folder of a run, which may be given as a folder or as an object with a `folder`.

    Raises:
        UserError: The object is neither, or is a `Run` that is not current (`check_current`).
    """
    folder = getattr(run, "folder", run)
    if not isinstance(folder, str | PathLike):
        raise UserError(f"a run must be given as its folder or as the result of `run`; got {type(run).__name__}")
    if isinstance(run, Run):
        run.check_current()
    return Path(folder)


def _state(summary: dict) -> list[tuple]:
    """Return the id, value and number of samples of each cell. Ranks may have been recomputed after loading."""
    return [(cell["cell_id"], cell["value"], cell["n"]) for cell in summary["cells"]]


def _dataset(table: "pa.Table") -> "Dataset":
    from datasets import Dataset  # the import takes longer than loading a run

    return Dataset(table)


def _report_settings(run: Run, other: Run) -> None:
    """Print a warning about settings that differ between two runs."""
    if settings := differing_question(other, run):
        complain(f"{other.folder} differs from {run.folder} in {', '.join(settings)}")


def load_run(folder: str | Path) -> Run:
    """Load a finished run as `run` returned it, after checking all files of the run.

        run = sb.load_run("runs/first")
        print(run)
        run.to_pandas().pivot(index="explainer", columns="metric", values="value")

    Args:
        folder: Folder of the run (the `out` of `run`).

    Raises:
        UserError: The folder contains no finished run, or a file in the folder is damaged.
    """
    run = read_run(folder_of(folder))
    return replace(run, folder=run.folder.resolve())


def load_maps(run: Any) -> dict[str, StoredMaps]:
    """Return the maps that a run has stored (`keep_maps`) as {explainer with options: maps}. Files are read on demand.

    The maps of an explainer are a mapping from image ids to arrays (H, W). `np.asarray` converts the mapping to an
    array (N, H, W) in the order of the ids. Maps are stored as float16 with a scale per map, so values are exact to
    0.05 %.

    Args:
        run: Result of `run`, or the folder of a run.

    Raises:
        UserError: The folder contains no run, or the run stored no maps.
    """
    return maps_in(folder_of(run))
