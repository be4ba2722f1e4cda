"""Run a paper's paired t-test and this package's paired test, for tables of papers that report significance.

The t-test is not adjusted for multiple comparisons and treats the images of a cluster as independent. This package's
test (`read/statistics/paired_test.py`) is adjusted and compares clusters. The number of significant differences
depends on the test, so both tests are reported.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import ttest_rel

from saliency_bench.read.cell import CellResult
from saliency_bench.read.finished_run import Run
from saliency_bench.read.statistics.ranking import ALPHA
from saliency_bench.recipes.suites.numbers import Results, explainer_text, metric_text

COLUMNS = ("dataset", "model", "quantity", "explainer", "other", "n", "difference", "p_t_test", "p_paired_test")


def t_tests(results: Results, name: str) -> pd.DataFrame:
    """Compare each explainer with the table's `t_test` explainer. Return one row per run, metric and explainer.

    Returns:
        A frame with the columns `COLUMNS`. p is NaN if there are too few samples, and `p_paired_test` is NaN if the run
        has no paired test of the two explainers.
    """
    table, rows = results.suite.tables[name], []
    for job, run in results.finished(table.runs):
        for quantity, value in table.values.items():
            explainers = results.suite.runs[job.name].explainers
            if value.metric and value.part is None and table.t_test in explainers:
                texts = [explainer_text(results.sized(text)) for text in explainers]
                reference = texts[explainers.index(table.t_test)]
                metric = metric_text(results.sized(value.metric))
                rows += [(job.dataset, job.model, quantity, *row) for row in _compare(run, metric, reference, texts)]
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _compare(run: Run, metric: str, reference: str, others: list[str]) -> Iterator[tuple[Any, ...]]:
    """Compare the reference with every other explainer that has a score in the run.

    Yield one tuple per comparison, which contains the values of COLUMNS from `explainer` onwards.
    """
    cells = {cell.explainer_text: cell for cell in run.cells if cell.metric_text == metric and not cell.aggregate}
    if reference not in cells:
        return
    for other in (text for text in others if text != reference and text in cells):
        both = np.array([run.scores.values[cells[text].cell_id] for text in (reference, other)])
        first, second = both[:, np.isfinite(both).all(axis=0)]
        # If all differences are equal, scipy returns NaN and warns.
        p = float(ttest_rel(first, second).pvalue) if np.any(first != second) and len(first) > 1 else np.nan
        difference = float((first - second).mean()) if len(first) else np.nan
        yield reference, other, len(first), difference, p, _adjusted_p(run, cells[reference], cells[other])


def _adjusted_p(run: Run, first: CellResult, second: CellResult) -> float:
    """Return the p-value of the run's paired test that compares two cells, or NaN if there is none."""
    for contrast in run.contrasts:
        if set(contrast.cells) == {first.cell_id, second.cell_id}:
            return np.nan if contrast.p is None else contrast.p
    return np.nan


def remarks(frame: pd.DataFrame) -> list[str]:
    """Return a remark that states how many differences are significant in each test."""
    if frame.empty:
        return []
    significant = [int((frame[column] < ALPHA).sum()) for column in ("p_t_test", "p_paired_test")]
    known = int(frame["p_paired_test"].notna().sum())
    return [
        f"Paired t-tests of {frame['explainer'][0]} against every other explainer at level {ALPHA}, not adjusted: "
        f"{significant[0]} of {len(frame)} differences are significant. In the adjusted paired test, "
        f"{significant[1]} of the {known} differences with enough samples are significant."
    ]
