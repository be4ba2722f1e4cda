"""What is behind a row: its best, worst and most disputed samples; and two rows, sample by sample."""

from dataclasses import dataclass

import numpy as np

from saliency_bench.leaderboard.board import Row
from saliency_bench.leaderboard.view.archive import Archive, Sampled
from saliency_bench.leaderboard.view.rows import ShownRow
from saliency_bench.results.clusters import Matched, cluster_codes
from saliency_bench.results.intervals import Estimate, difference

SHOWN = 5  # samples of a kind
MOST_RIVALS = 40
MOST_DOTS = 2000
Both = tuple[str, float, float]  # a sample and its scores


@dataclass(frozen=True)
class Sample:
    """A sample of a row.

    Attributes:
        image_id: of its image.
        value: its score.
        low: the lowest of all rows that can be compared.
        high: the highest of all rows that can be compared.
        label: of the image.
        prediction: of the classifier.
    """

    image_id: str
    value: float
    low: float | None = None
    high: float | None = None
    label: str = ""
    prediction: str = ""


def samples_of(archive: Archive, key: str) -> dict[str, list[Sample]]:
    """Return {"best", "worst", "most disputed": samples} of a row; {} where its metric scores no single sample.

    Disputed are those on which the rows that can be compared are furthest apart.
    """
    shown, row = archive.by_key[key]
    sampled = archive.sampled(row)
    there = np.flatnonzero(np.isfinite(sampled.scores))
    if not len(there):
        return {}
    low, high = _spread(archive, shown, sampled)
    better = sampled.scores if shown.higher_is_better else -sampled.scores
    order = there[np.argsort(-better[there], kind="stable")]
    by_kind = {"best": order[:SHOWN], "worst": order[::-1][:SHOWN]}
    disputed = there[np.argsort(-(high - low)[there], kind="stable")][:SHOWN]
    if (high - low)[disputed].max(initial=0) > 0:
        by_kind["most disputed"] = disputed
    labels = archive.labels_of(row, [sampled.ids[index] for index in np.unique(np.concatenate(list(by_kind.values())))])
    return {
        kind: [
            Sample(sampled.ids[index], float(sampled.scores[index]), float(low[index]), float(high[index]),
                   *(labels.get(sampled.ids[index], {}).get(name) or "" for name in ("label", "prediction")))
            for index in indices
        ]
        for kind, indices in by_kind.items()
    }  # fmt: skip


def _spread(archive: Archive, shown: ShownRow, sampled: Sampled) -> tuple[np.ndarray, np.ndarray]:
    """Return (the lowest, the highest) score of each sample among all rows of its question."""
    place = {image_id: index for index, image_id in enumerate(sampled.ids)}
    low, high = sampled.scores.copy(), sampled.scores.copy()
    rivals = [
        row for rival, row in archive.by_key.values() if rival.question == shown.question and rival.key != shown.key
    ]
    for row in rivals[:MOST_RIVALS]:
        theirs = archive.sampled(row)
        known = [(place[image_id], score) for image_id, score in zip(theirs.ids, theirs.scores, strict=True)
                 if image_id in place]  # fmt: skip
        if known:
            indices = np.array([index for index, _ in known])
            scores = np.array([score for _, score in known])
            low[indices] = np.fmin(low[indices], scores)
            high[indices] = np.fmax(high[indices], scores)
    return low, high


@dataclass(frozen=True)
class Pairwise:
    """Two rows on the samples that both have.

    estimate    the mean of first minus second, not corrected for several
    better      how many samples the first is better on, the second, and on how many both are equal
    dots        (n, 2) scores of both, of at most `MOST_DOTS` samples, evenly spaced
    furthest    samples on which the first is better by most, and those on which the second is: (id, first, second)
    """

    estimate: Estimate
    better: tuple[int, int, int]
    dots: np.ndarray
    furthest: tuple[list[Both], list[Both]]


def pairwise(archive: Archive, first: Row, second: Row) -> Pairwise:
    """Return the comparison of two rows of a question."""
    ours, other = archive.sampled(first), archive.sampled(second)
    theirs = dict(zip(other.ids, other.scores, strict=True))
    paired = np.array([theirs.get(image_id, np.nan) for image_id in ours.ids], dtype=float)
    matched = Matched([ours.scores, paired], cluster_codes(ours.ids, ours.groups))
    both = np.flatnonzero(np.isfinite(ours.scores) & np.isfinite(paired))
    sign = 1 if first.cell.higher_is_better else -1
    gains = sign * (ours.scores - paired)[both]
    order = both[np.argsort(-gains, kind="stable")]
    every = max(1, -(-len(both) // MOST_DOTS))
    return Pairwise(
        difference(matched, 0, 1),
        (int((gains > 0).sum()), int((gains < 0).sum()), int((gains == 0).sum())),
        np.stack([ours.scores[both][::every], paired[both][::every]], axis=1),
        (_named(ours, paired, order[:SHOWN], sign), _named(ours, paired, order[::-1][:SHOWN], -sign)),
    )


def _named(sampled: Sampled, paired: np.ndarray, indices: np.ndarray, sign: int) -> list[Both]:
    """Return those of some samples on which one side is better."""
    return [(sampled.ids[index], float(sampled.scores[index]), float(paired[index])) for index in indices
            if sign * (sampled.scores[index] - paired[index]) > 0]  # fmt: skip
