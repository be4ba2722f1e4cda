"""Compare two runs sample by sample: paired differences of their scores, and cells that contradict each other."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from saliency_bench.errors import UserError
from saliency_bench.read.analysis.common_names import explainer_of, metric_of, names_of
from saliency_bench.read.analysis.tables import finite_or_none
from saliency_bench.read.cell import FEW, CellResult
from saliency_bench.read.run_folder import CellScores
from saliency_bench.read.statistics.clusters import Matched, cluster_codes
from saliency_bench.read.statistics.intervals import aggregate_difference, p_with_failures, paired_difference
from saliency_bench.read.statistics.paired_test import ALPHA, adjusted_p, outlasting_failures
from saliency_bench.read.statistics.ranking import (
    NO_DIFFERENCE,
    NOT_TESTED,
    RANKED_FROM,
    TOO_FEW_TO_TELL,
    aggregate_of,
    sign_of,
)
from saliency_bench.utils.messages import complain

if TYPE_CHECKING:
    from saliency_bench.read.finished_run import Run

TOLERANCE = 1e-5  # relative difference that a different machine or batch size may cause
NEGLIGIBLE = 1e-9  # smaller absolute differences are ignored, even between small numbers
MOST = 5  # samples listed per pair


def same(first: ArrayLike, second: ArrayLike) -> np.ndarray:
    """Return whether numbers are equal up to `TOLERANCE`; NaN is equal only to NaN."""
    tolerance = np.maximum(TOLERANCE * np.maximum(np.abs(first), np.abs(second)), NEGLIGIBLE)
    return (np.abs(np.subtract(first, second)) <= tolerance) | (np.isnan(first) & np.isnan(second))


@dataclass(frozen=True)
class SampleDifference:
    """Scores of one sample in two runs, None if missing; `difference` is second minus first."""

    image_id: str
    first: float | None
    second: float | None
    difference: float | None


@dataclass(frozen=True)
class RunPair:
    """Scores of one explainer on one metric in two runs, for the samples that have a score in both runs.

    Attributes:
        first: Scores in the first run; NaN for aggregates.
        second: Scores in the second run; NaN for aggregates.
        unpaired: Number of samples that have a score in only one of the two runs.
        effective: Number of clusters of equal size that would be as informative as `clusters`.
        low: Lower end of the 95 % interval of the mean difference, not corrected for multiple comparisons.
        high: Upper end of the interval.
        p: p-value adjusted over all pairs of the two runs; None if there are too few samples.
        aggregate: Second value minus first value, for values that are aggregates; not tested.
        rare: Whether the interval was widened because the samples do not rule out rare, very different scores.
    """

    explainer: str
    metric: str
    cells: tuple[CellResult, CellResult]
    ids: list[str]
    first: np.ndarray
    second: np.ndarray
    unpaired: int
    clusters: int = 0
    effective: float = 0
    low: float = np.nan
    high: float = np.nan
    p: float | None = None
    aggregate: float | None = None
    rare: bool = False

    @property
    def baseline(self) -> bool:
        """Return whether the explainer ignores the network."""
        return self.cells[0].baseline

    @property
    def higher_is_better(self) -> bool:
        """Return whether higher scores are better."""
        return self.cells[0].higher_is_better

    @cached_property
    def differences(self) -> np.ndarray:
        """Return the second scores minus the first scores (n,), or 0 where they are equal up to `TOLERANCE`."""
        return np.where(same(self.first, self.second), 0.0, self.second - self.first)

    @property
    def is_same(self) -> bool:
        """Return whether both runs have the same cell with the same scores."""
        first, second = self.cells
        equal = not self.differences.any() and not self.aggregate
        return first.cell_id == second.cell_id and self.unpaired == 0 and equal

    @property
    def mean(self) -> float | None:
        """Return the mean difference or, for aggregates, the difference of the values; None if there are no samples."""
        if not self.is_tested:
            return self.aggregate
        return float(np.mean(self.second - self.first)) if len(self.ids) else None

    @property
    def direction(self) -> int:
        """Return 1 if the second run is significantly better, -1 if worse, 0 if no difference was found."""
        return sign_of(float(self.differences.sum()), self.p, self.higher_is_better)

    @property
    def word(self) -> str:
        """Describe how the second run compares with the first, in the wording used in reports."""
        if self.p is None:
            return TOO_FEW_TO_TELL if self.is_tested else NOT_TESTED
        return {1: "better", -1: "worse", 0: NO_DIFFERENCE}[self.direction]

    @property
    def is_tested(self) -> bool:
        """Return whether the values are means of scores, which can be tested if there are enough samples."""
        return not self.cells[0].aggregate

    @property
    def few(self) -> bool:
        """Return whether the interval is based on few samples."""
        return np.isfinite(self.low) and self.effective < FEW

    @property
    def shares(self) -> tuple[float, float, float] | None:
        """Return the fractions of samples on which the second run is (better, equal, worse); None for aggregates."""
        if not len(self.ids) or not self.is_tested:
            return None
        gains = self.differences if self.higher_is_better else -self.differences
        return float(np.mean(gains > 0)), float(np.mean(gains == 0)), float(np.mean(gains < 0))

    @property
    def largest(self) -> list[SampleDifference]:
        """Return the samples that differ most, at most `MOST`."""
        order = np.argsort(-np.abs(self.differences), kind="stable")[:MOST]
        return [
            _sample(self.ids[index], self.first[index], self.second[index])
            for index in order
            if self.differences[index]
        ]

    def as_dict(self) -> dict:
        """Return plain data."""
        better, equal, worse = self.shares or (None, None, None)
        return {
            "explainer": self.explainer,
            "metric": self.metric,
            "higher_is_better": self.higher_is_better,
            "cell_ids": [cell.cell_id for cell in self.cells],
            "n": len(self.ids),
            "clusters": self.clusters,
            "unpaired": self.unpaired,
            "mean": self.mean,
            "low": finite_or_none(self.low),
            "high": finite_or_none(self.high),
            "rare_failures": self.rare,
            "p": self.p,
            "better": better,
            "equal": equal,
            "worse": worse,
            "largest": [asdict(sample) for sample in self.largest],
        }


def _sample(image_id: str, first: float, second: float) -> SampleDifference:
    return SampleDifference(image_id, finite_or_none(first), finite_or_none(second), finite_or_none(second - first))


def why_not(first: "Run", second: "Run") -> str | None:
    """Return the reason why two runs cannot be compared sample by sample; None if they can be compared."""
    datasets = first.summary["dataset"], second.summary["dataset"]
    if datasets[0]["fingerprint"] != datasets[1]["fingerprint"]:
        names = " and ".join(f"{dataset['id']} with fingerprint {dataset['fingerprint'][:8]}" for dataset in datasets)
        return f"they use different datasets ({names})"
    if datasets[0]["split"] != datasets[1]["split"]:
        return f"they use different splits ({datasets[0]['split']} and {datasets[1]['split']})"
    return None


def differences(first: "Run", second: "Run") -> list[dict]:
    """Compare the explainers and metrics that two runs share, sample by sample, and return plain data.

    Args:
        first: A run.
        second: Another run on the same dataset and split. The model, target rule, precision, seed or batch size may
            differ.

    Returns:
        A dict for each shared pair of explainer and metric. `mean` is second minus first over the `n` samples that both
        runs have scored. Its 95 % interval, `low` to `high`, is not corrected for multiple comparisons. `p` is the
        p-value of the paired test, adjusted over all entries; it needs at least 50 `clusters`. `better`, `equal` and
        `worse` are the fractions of samples on which the second run is better, equal up to rounding errors, or worse.
        `largest` contains the five samples that differ most, and `unpaired` is the number of samples that only one run
        has scored. Unknown values are None.

    Raises:
        UserError: The runs use different datasets or splits, or share no cell.
    """
    if reason := why_not(first, second):
        raise UserError(f"{first.folder} and {second.folder} cannot be compared sample by sample: {reason}")
    if not (shared := pairs(first, second)):
        versions = _other_versions(first, second)
        raise UserError(f"{first.folder} and {second.folder} share no pair of explainer and metric{versions}")
    if versions := _other_versions(first, second):
        complain(f"not compared because of different versions{versions}")
    return [pair.as_dict() for pair in shared]


def _other_versions(first: "Run", second: "Run") -> str:
    """List names whose versions differ between two runs, as the end of a message; "" if there are none."""
    sentences = []
    for method_of in (explainer_of, metric_of):
        before, after = (
            {method.text: method.version for method in map(method_of, run.cells)} for run in (first, second)
        )
        sentences += [
            f"{text} has version {before[text]} in the first run and {after[text]} in the second"
            for text in before
            if text in after and before[text] != after[text]
        ]
    return f": {'; '.join(sentences)}" if sentences else ""


def _shared_samples(first: CellScores, second: CellScores) -> tuple[list[str], np.ndarray, np.ndarray]:
    """Return (ids of the common samples in the order of `first`, indices in `first`, indices in `second`)."""
    ids = [image_id for image_id in first.ids if image_id in second.position]
    in_first = np.array([first.position[image_id] for image_id in ids], dtype=int)
    in_second = np.array([second.position[image_id] for image_id in ids], dtype=int)
    return ids, in_first, in_second


def pairs(first: "Run", second: "Run") -> list[RunPair]:
    """Compare the cells that two runs share, in the order of the first run. For each metric, baselines come last."""
    explainers, metric_names = names_of([first, second])
    before, after = (
        {(metric_names.key(cell), explainers.key(cell)): cell for cell in run.cells} for run in (first, second)
    )
    metrics = list(dict.fromkeys(metric for metric, _ in before))
    shared = sorted(
        (key for key in before if key in after), key=lambda key: (metrics.index(key[0]), before[key].baseline)
    )
    return compared(
        first,
        second,
        [(before[key], after[key], explainers.text(before[key]), metric_names.text(before[key])) for key in shared],
    )


def compared(first: "Run", second: "Run", cells: Sequence[tuple[CellResult, CellResult, str, str]]) -> list[RunPair]:
    """Compare cells of two runs on the samples with a score in both runs. The p-values are adjusted over all pairs.

    `cells` are tuples (cell of the first run, cell of the second run, name of the explainer, name of the metric).
    """
    ids, in_first, in_second = _shared_samples(first.scores, second.scores)
    pairs_found, rows = [], []
    for before, after, explainer, metric in cells:
        scores = first.scores.values[before.cell_id][in_first], second.scores.values[after.cell_id][in_second]
        common = first.scores.takes_part(before)[in_first] & second.scores.takes_part(after)[in_second]
        pair = RunPair(
            explainer=explainer,
            metric=metric,
            cells=(before, after),
            ids=[ids[index] for index in np.flatnonzero(common)],
            first=scores[0][common],
            second=scores[1][common],
            unpaired=before.n + after.n - 2 * int(common.sum()),
        )
        pairs_found.append(pair)
        rows.append(common)
    groups = [first.scores.groups[index] for index in in_first]
    codes = cluster_codes(ids, groups)
    common = [index for index, pair in enumerate(pairs_found) if pair.is_tested]
    tested = iter(_tested([(pairs_found[index], rows[index]) for index in common], codes))
    positions = in_first, in_second
    return [
        next(tested) if pair.is_tested else _of_aggregates(pair, first, second, positions, codes)
        for pair in pairs_found
    ]


def _of_aggregates(
    pair: RunPair, first: "Run", second: "Run", positions: tuple[np.ndarray, np.ndarray], codes: np.ndarray
) -> RunPair:
    """Return a pair of aggregates with their difference and its interval."""
    parts = first.scores.parts.get(pair.cells[0].cell_id), second.scores.parts.get(pair.cells[1].cell_id)
    if (aggregate := aggregate_of(pair.cells[0])) is None or parts[0] is None or parts[1] is None:
        return pair
    estimate = aggregate_difference(aggregate, parts[1][positions[1]], parts[0][positions[0]], codes, first.seed)
    return replace(
        pair, clusters=estimate.clusters, effective=estimate.effective, low=estimate.low, high=estimate.high,
        aggregate=finite_or_none(estimate.value),
    )  # fmt: skip


def _tested(pairs_and_rows: list[tuple[RunPair, np.ndarray]], codes: np.ndarray) -> list[RunPair]:
    """Return the pairs with intervals and p-values. The p-values are adjusted over all pairs of the two runs.

    Each pair comes with the mask of its samples, bool (n,).
    """
    if not pairs_and_rows:
        return []
    nothing, columns, matched, estimates = len(pairs_and_rows), [], [], []
    for pair, rows in pairs_and_rows:
        first, difference = np.full((2, len(codes)), np.nan)
        first[rows], difference[rows] = pair.first, pair.differences
        columns.append(difference)
        matched.append(Matched([first + difference, first], codes, pair.cells[0].limits))
        estimates.append(paired_difference(matched[-1], 0, 1))
    enough = [(index, nothing) for index, estimate in enumerate(estimates) if estimate.effective >= RANKED_FROM]
    (flipped,) = adjusted_p([Matched([*columns, np.zeros(len(codes))], codes)], [enough])
    # The test uses only differences, but the effect of a failure depends on the scores.
    p = {
        index: p if p >= ALPHA else outlasting_failures(p, p_with_failures(matched[index], 0, 1), 2 * len(enough))
        for (index, _), p in flipped.items()
    }
    return [
        replace(pair, clusters=estimate.clusters, effective=estimate.effective, low=estimate.low, high=estimate.high,
                p=p.get(index), rare=estimate.rare)
        for index, ((pair, _), estimate) in enumerate(zip(pairs_and_rows, estimates, strict=True))
    ]  # fmt: skip


@dataclass(frozen=True)
class Conflict:
    """Two cells with the same id whose scores differ.

    Attributes:
        cells: Both cells.
        samples: Number of samples whose scores differ.
        common: Number of samples that occur in both cells.
        largest: Sample that differs most; None if only the means differ.
    """

    cells: tuple[CellResult, CellResult]
    samples: int
    common: int
    largest: SampleDifference | None

    @property
    def cell_id(self) -> str:
        """Return the id that both cells share."""
        return self.cells[0].cell_id

    @property
    def explainer(self) -> str:
        """Return the name of the explainer."""
        return self.cells[0].explainer_text

    @property
    def metric(self) -> str:
        """Return the name of the metric."""
        return self.cells[0].metric_text

    def as_dict(self) -> dict:
        """Return plain data."""
        return {
            "cell_id": self.cell_id,
            "explainer": self.explainer,
            "metric": self.metric,
            "samples": self.samples,
            "of": self.common,
            "values": [cell.value for cell in self.cells],
            "n": [cell.n for cell in self.cells],
            "largest": self.largest and asdict(self.largest),
        }


def conflicts(
    first: tuple[Sequence[CellResult], CellScores], second: tuple[Sequence[CellResult], CellScores]
) -> list[Conflict]:
    """Return the cells with the same id whose scores differ on the common samples of the two runs.

    Args:
        first: Cells and scores of a run.
        second: Cells and scores of another run.
    """
    (cells, before), (cells_of_second, after) = first, second
    others = {cell.cell_id: cell for cell in cells_of_second}
    ids, in_first, in_second = _shared_samples(before, after)
    same_samples = len(ids) == len(before.ids) == len(after.ids)
    contradictory = []
    for cell in cells:
        other = others.get(cell.cell_id)
        if other is None:
            continue
        scores = before.values[cell.cell_id][in_first], after.values[cell.cell_id][in_second]
        differing = np.flatnonzero(~same(*scores) | _parts_differ(cell, before, after, (in_first, in_second)))
        if len(differing) or (same_samples and not same(_number(cell), _number(other))):
            largest = None if cell.aggregate else _furthest(ids, scores, differing)
            contradictory.append(Conflict((cell, other), len(differing), len(ids), largest))
    return contradictory


def _parts_differ(
    cell: CellResult, first: CellScores, second: CellScores, positions: tuple[np.ndarray, np.ndarray]
) -> np.ndarray:
    """Return bool (n,): whether any part of a sample's score differs; False for cells that are not aggregates."""
    parts = [scores.parts.get(cell.cell_id) for scores in (first, second)]
    if parts[0] is None or parts[1] is None:
        return np.zeros(len(positions[0]), bool)
    differing: np.ndarray = ~same(parts[0][positions[0]], parts[1][positions[1]])
    return np.any(differing, axis=1)


def _number(cell: CellResult) -> float:
    return np.nan if cell.value is None else cell.value


def _furthest(ids: list[str], scores: Sequence[np.ndarray], differing: np.ndarray) -> SampleDifference | None:
    """Return the sample with the largest difference. A missing score differs more than any number."""
    if len(differing) == 0:
        return None
    gaps = np.abs(scores[0] - scores[1])[differing]
    index = differing[int(np.argmax(np.where(np.isnan(gaps), np.inf, gaps)))]
    return _sample(ids[index], scores[0][index], scores[1][index])
