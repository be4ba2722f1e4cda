"""Analyses of the scores of runs: `sb.analyse` and the command `analyse`."""

import inspect
import json
import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from saliency_bench.errors import UserError, unknown
from saliency_bench.read.analysis.clever_hans import clever_hans
from saliency_bench.read.analysis.comparison import Comparison, compare_runs
from saliency_bench.read.analysis.correlations import correlation
from saliency_bench.read.analysis.order_agreement import agreement
from saliency_bench.read.analysis.randomisation import randomisation
from saliency_bench.read.analysis.rankings import rank, sensitivity
from saliency_bench.read.analysis.sweeps import sweep
from saliency_bench.read.analysis.tables import Findings, Table
from saliency_bench.read.finished_run import Run, run_of
from saliency_bench.read.report.comparison_page import merged_name, run_names
from saliency_bench.utils.files import read_json, write_text

ANALYSES: dict[str, Callable[..., Findings]] = {
    "correlation": correlation,
    "sensitivity": sensitivity,
    "clever-hans": clever_hans,
    "sweep": sweep,
    "rank": rank,
    "randomisation": randomisation,
    "agreement": agreement,
}


@dataclass(frozen=True, repr=False)
class Analysis:
    """Results of an analysis, as `tables` and as plain `data`. `save` writes them; `print` displays the first table."""

    findings: Findings
    runs: list[Run]

    @property
    def tables(self) -> list[Table]:
        """Return the tables. Each has `header` and `rows`, and `csv()`, `markdown()` and `latex()` return text."""
        return self.findings.tables

    @property
    def data(self) -> dict[str, Any]:
        """Return the content of the JSON file that `save` writes."""
        return {"what": self.findings.what, **self.findings.data, "notes": self.findings.notes}

    def save(self, out: str | Path) -> list[Path]:
        """Write JSON, a plot, and each table as CSV, Markdown and LaTeX to a folder, and return the paths."""
        from saliency_bench.read.report.plots import plot  # imports matplotlib

        folder = Path(out)
        if folder.exists() and not folder.is_dir():
            raise UserError(f"{folder} is not a folder; choose a different --out")
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"cannot write to {folder}: {error.strerror or error}; choose a different --out") from error
        analysis = self.findings.what
        texts = {f"{analysis}.json": json.dumps(self.data, indent=2) + "\n"}
        for table in self.tables:
            name = f"{analysis}-{table.name}" if table.name else analysis
            texts |= {f"{name}.csv": table.csv(), f"{name}.md": table.markdown(), f"{name}.tex": table.latex()}
        _check_replaced(folder, analysis, [*texts, f"{analysis}.svg"])
        for name, text in texts.items():
            write_text(folder / name, text)
        plot(self.findings, self.runs, folder / f"{analysis}.svg")
        return [folder / name for name in (*texts, f"{analysis}.svg")]

    def __str__(self) -> str:
        return "\n\n".join([*(table.markdown().rstrip() for table in self.tables[:1]), *self.findings.notes])

    __repr__ = __str__


def _check_replaced(folder: Path, analysis: str, names: Sequence[str]) -> None:
    """Raise UserError if a file with one of these names was not written by an earlier analysis of this type."""
    present = [name for name in names if os.path.lexists(folder / name)]
    if present and not _is_analysis(folder / f"{analysis}.json", analysis):
        raise UserError(f"{folder / present[0]} exists and was not written by an analysis; choose a different --out")


def _is_analysis(path: Path, analysis: str) -> bool:
    """Return whether a JSON file was written by an earlier analysis of this type."""
    try:
        content = read_json(path)
    except (OSError, ValueError):
        return False
    return isinstance(content, dict) and content.get("what") == analysis and "notes" in content


def analyse(runs: Any, what: str, **options: Any) -> Analysis:
    """Analyse the scores of one or more runs. Neither the model nor the dataset is needed.

    Args:
        runs: Result of `run`, its folder, or a list of these. Runs with the same settings are merged.
        what: Analysis, with its options in parentheses. "correlation": correlation of each pair of metrics over the
            samples of each explainer, and over the mean scores on datasets if there are at least three. "sensitivity":
            ranks of explainers over all settings of a metric. "clever-hans": samples whose target the network predicts
            with confidence from pixels outside the object (`confidence`, `pointing_game`, `insertion`). "sweep": scores
            of a metric at several values of an option (`option`). "rank": agreement of metrics on the order of
            explainers. "randomisation": whether explainers depend on the weights, according to the parts of
            saliency_randomisation (`bound`). "agreement": agreement of metrics and people on the order of explainers at
            each exposure (`answers`, a file as described in `saliency_bench.read.analysis.order_agreement`).
        options: Options of the analysis.

    Raises:
        UserError: The analysis or an option is unknown, or the runs lack scores that the analysis needs.
    """
    if what not in ANALYSES:
        raise unknown("analysis", what, ANALYSES)
    allowed = list(inspect.signature(ANALYSES[what]).parameters)[1:]
    for name in options:
        if name not in allowed:
            raise UserError(
                f"{what} has no option {name}" + (f"; its options: {', '.join(allowed)}" if allowed else "")
            )
    chosen = list(runs) if isinstance(runs, Sequence) and not isinstance(runs, str) else [runs]
    if not chosen:
        raise UserError("an analysis needs at least one run; pass its folder")
    merged = _labelled(compare_runs(list(map(run_of, chosen))))
    return Analysis(ANALYSES[what](merged, **options), merged)


def _labelled(comparison: Comparison) -> list[Run]:
    """Label runs on the same dataset and model with the names of their folders, so that rows can be told apart."""
    uses = Counter(run.subject for run in comparison.merged)
    names = run_names(comparison.runs)
    return [
        replace(run, label=merged_name(run, comparison, names)) if uses[run.subject] > 1 else run
        for run in comparison.merged
    ]
