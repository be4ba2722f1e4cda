"""List the best, worst and most disputed samples of a row, and compare two rows sample by sample."""

from dataclasses import dataclass

import numpy as np

from saliency_bench.board.row import Row
from saliency_bench.board.view.archive import Archive
from saliency_bench.board.view.overall import Scored
from saliency_bench.board.view.rows import ShownRow
from saliency_bench.read.statistics.clusters import Matched, cluster_codes
from saliency_bench.read.statistics.intervals import Estimate, paired_difference

SHOWN = 5  # number of samples per list
MOST_RIVALS = 40
MOST_DOTS = 2000
Both = tuple[str, float, float]  # a sample and its two scores


@dataclass(frozen=True)
class ComparedSample:
    """A sample of a row, with its scores in comparable rows.

    Attributes:
        low: Lowest score of the sample among all comparable rows.
        high: Highest score of the sample among all comparable rows.
        label: Class of the sample.
        prediction: Class that the classifier predicts.
    """

    image_id: str
    value: float
    low: float | None = None
    high: float | None = None
    label: str = ""
    prediction: str = ""


def samples_of(archive: Archive, key: str) -> dict[str, list[ComparedSample]]:
    """Return {"best", "worst", "most disputed": samples} for a row, or {} if its samples have no scores.

    The most disputed samples have the scores that differ most among comparable rows.
    """
    shown, row = archive.by_key[key]
    scored = archive.sampled(row)
    scored_indices = np.flatnonzero(np.isfinite(scored.scores))
    if not len(scored_indices):
        return {}
    low, high = _spread(archive, shown, scored)
    better = scored.scores if shown.higher_is_better else -scored.scores
    order = scored_indices[np.argsort(-better[scored_indices], kind="stable")]
    indices_by_kind = {"best": order[:SHOWN], "worst": order[::-1][:SHOWN]}
    disputed = scored_indices[np.argsort(-(high - low)[scored_indices], kind="stable")][:SHOWN]
    if (high - low)[disputed].max(initial=0) > 0:
        indices_by_kind["most disputed"] = disputed
    shown_indices = np.unique(np.concatenate(list(indices_by_kind.values())))
    labels = archive.labels_of(row, [scored.ids[index] for index in shown_indices])
    return {
        kind: [
            ComparedSample(scored.ids[index], float(scored.scores[index]), float(low[index]), float(high[index]),
                   *(labels.get(scored.ids[index], {}).get(name) or "" for name in ("label", "prediction")))
            for index in indices
        ]
        for kind, indices in indices_by_kind.items()
    }  # fmt: skip


def _spread(archive: Archive, shown: ShownRow, scored: Scored) -> tuple[np.ndarray, np.ndarray]:
    """For each sample of a row, return the lowest and the highest score among all comparable rows."""
    low = high = scored.scores
    rivals = [
        row
        for shown_row, row in archive.by_key.values()
        if shown_row.question == shown.question and shown_row.key != shown.key
    ]
    for row in rivals[:MOST_RIVALS]:
        theirs = archive.sampled(row).over(scored.ids)
        low, high = np.fmin(low, theirs), np.fmax(high, theirs)  # fmin and fmax ignore NaN
    return low, high


@dataclass(frozen=True)
class Pairwise:
    """Comparison of two rows on their common samples.

    Attributes:
        estimate: Mean of the first row's score minus the second row's. It is not corrected for multiple comparisons.
        better: Numbers of samples on which the first row is better, the second row is better, or both are equal.
        dots: Scores (n, 2) of the two rows on at most `MOST_DOTS` samples, which are evenly spaced in the list of
            samples.
        furthest: (id, first score, second score) of the samples on which the first row has its largest advantages, and
            of the samples on which the second row has its largest advantages.
    """

    estimate: Estimate
    better: tuple[int, int, int]
    dots: np.ndarray
    furthest: tuple[list[Both], list[Both]]


def pairwise(archive: Archive, first: Row, second: Row) -> Pairwise:
    """Compare two comparable rows sample by sample."""
    ours = archive.sampled(first)
    paired = archive.sampled(second).over(ours.ids)
    matched = Matched([ours.scores, paired], cluster_codes(ours.ids, ours.groups), first.cell.limits)
    both = np.flatnonzero(np.isfinite(ours.scores) & np.isfinite(paired))
    sign = 1 if first.cell.higher_is_better else -1
    gains = sign * (ours.scores - paired)[both]
    order = both[np.argsort(-gains, kind="stable")]
    every = max(1, -(-len(both) // MOST_DOTS))
    return Pairwise(
        paired_difference(matched, 0, 1),
        (int((gains > 0).sum()), int((gains < 0).sum()), int((gains == 0).sum())),
        np.stack([ours.scores[both][::every], paired[both][::every]], axis=1),
        (_named(ours, paired, order[:SHOWN], sign), _named(ours, paired, order[::-1][:SHOWN], -sign)),
    )


def _named(ours: Scored, paired: np.ndarray, indices: np.ndarray, sign: int) -> list[Both]:
    """Return (id, first score, second score) for the samples on which `sign` * (first - second) is positive."""
    return [(ours.ids[index], float(ours.scores[index]), float(paired[index])) for index in indices
            if sign * (ours.scores[index] - paired[index]) > 0]  # fmt: skip
