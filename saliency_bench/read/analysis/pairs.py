"""Compare each pair of explainers of a run on each metric: their difference, and the samples that differ most."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np

from saliency_bench.read.analysis.differences import SampleDifference, same
from saliency_bench.read.analysis.verdict import Against, Verdict
from saliency_bench.read.cell import RARE, CellResult
from saliency_bench.read.cell_table import MetricColumn
from saliency_bench.read.run_folder import CellScores

if TYPE_CHECKING:
    from saliency_bench.read.finished_run import Run

MOST = 3  # samples that are listed for each explainer of a pair


@dataclass(frozen=True)
class ExplainerPair:
    """Comparison of two explainers on one metric, over their common samples.

    Attributes:
        against: Difference and its test.
        better: Fraction of samples on which the first is better; None for an aggregate (samples have no scores).
        equal: Fraction of samples on which both are equal; None for an aggregate.
        worse: Fraction of samples on which the first is worse; None for an aggregate.
        ahead: Samples on which the first is furthest ahead of the other; `difference` is first minus second.
        behind: Samples on which the first is furthest behind the other.
    """

    against: Against
    better: float | None
    equal: float | None
    worse: float | None
    ahead: list[SampleDifference]
    behind: list[SampleDifference]

    def as_dict(self) -> dict:
        """Return plain data."""
        contrast = self.against.contrast
        return {
            "metric": self.against.metric,
            "explainers": [self.against.name, self.against.other],
            **{name: getattr(contrast, name) for name in ("n", "clusters", "difference", "low", "high", "p")},
            "first_is": self.against.word,
            **{name: getattr(self, name) for name in ("better", "equal", "worse")},
            **{name: [asdict(sample) for sample in getattr(self, name)] for name in ("ahead", "behind")},
        }


def explainer_pairs(run: "Run") -> list[tuple[MetricColumn, list[ExplainerPair]]]:
    """Return [(metric, pairs of explainers that share samples)]. The better explainer is first."""
    verdict = Verdict(run.cells, run.contrasts)
    columns_and_pairs = [(column, list(_pairs_of(run, column, verdict))) for column in run.table.columns]
    return [(column, pairs) for column, pairs in columns_and_pairs if pairs]


def pair_rows(run: "Run") -> list[tuple[str, list[list[str]]]]:
    """Return `explainer_pairs` as [(metric, table of strings with a header)]."""
    header = ["explainer", "against", "difference", "the first", "p", "n", "better/equal/worse on", "furthest ahead"]
    return [
        (f"{column.name} {column.arrow}", [[*header, "furthest behind"], *map(_row, pairs)])
        for column, pairs in explainer_pairs(run)
    ]


def _row(pair: ExplainerPair) -> list[str]:
    against = pair.against
    contrast = against.contrast
    ends = "" if contrast.low is None else f" [{contrast.low:+.3f}, {contrast.high:+.3f}]"
    ends += f" ({RARE})" * contrast.rare
    p = "-" if contrast.p is None else f"{contrast.p:.4f}"
    shares = "/".join("-" if share is None else f"{share:.0%}" for share in (pair.better, pair.equal, pair.worse))
    samples = (side[0].image_id if side else "-" for side in (pair.ahead, pair.behind))
    return [
        against.name,
        against.other,
        f"{contrast.difference:+.3f}{ends}",
        against.word,
        p,
        str(contrast.n),
        shares,
        *samples,
    ]


def _pairs_of(run: "Run", column: MetricColumn, verdict: Verdict) -> Iterator[ExplainerPair]:
    cells = [cell for _, cell in run.table.cells_of_column(column) if cell.value is not None]
    cells.sort(key=lambda cell: -cell.oriented)  # the better mean first
    for first, second in combinations(cells, 2):
        for against in verdict.against(first.explainer_id, second.explainer_id):
            if against.metric == column.name:
                yield _pair(run.scores, against, first, second)


def _pair(scores: CellScores, against: Against, first: CellResult, second: CellResult) -> ExplainerPair:
    """Compare two cells sample by sample."""
    if first.aggregate:
        return ExplainerPair(against, None, None, None, [], [])
    left, right = scores.values[first.cell_id], scores.values[second.cell_id]
    common = np.flatnonzero(np.isfinite(left) & np.isfinite(right))
    left, right = left[common], right[common]
    gains = np.where(same(left, right), 0.0, left - right) * (1 if first.higher_is_better else -1)

    def samples_at(indices: np.ndarray) -> list[SampleDifference]:
        return [
            SampleDifference(scores.ids[common[k]], float(left[k]), float(right[k]), float(left[k] - right[k]))
            for k in indices
        ]

    better, equal, worse = (float(np.mean(np.sign(gains) == sign)) for sign in (1, 0, -1))
    return ExplainerPair(against, better, equal, worse, samples_at(_largest(gains)), samples_at(_largest(-gains)))


def _largest(gains: np.ndarray) -> np.ndarray:
    """Return the indices of the `MOST` largest positive gains, earlier ones first in ties, without a full sort."""
    least = np.partition(gains, -MOST)[-MOST] if len(gains) > MOST else -np.inf
    indices = np.flatnonzero((gains >= least) & (gains > 0))
    return indices[np.argsort(-gains[indices], kind="stable")][:MOST]
