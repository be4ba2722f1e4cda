"""Clusters of samples that depend on each other, such as the slices of a patient or the rows of an image.

Scores are rounded to multiples of a power of two before they are summed (`summable`). The sums are therefore exact and
do not depend on the order of the samples or the number of threads.
"""

from collections.abc import Sequence

import numpy as np

BITS = 53  # precision of a float64


def cluster_names(ids: Sequence[str], groups: Sequence[str | None]) -> list[str]:
    """Return the name of each sample's cluster: its group, or the sample itself if it has no group."""
    return [f"s{sample}" if group is None else f"g{group}" for sample, group in zip(ids, groups, strict=True)]


def cluster_codes(ids: Sequence[str], groups: Sequence[str | None]) -> np.ndarray:
    """Return the number of each sample's cluster (n,), in the order of `cluster_names`."""
    names = cluster_names(ids, groups)
    # np.unique would pad all names to the length of the longest name.
    codes = {name: code for code, name in enumerate(sorted(set(names)))}
    return np.array([codes[name] for name in names], dtype=np.intp)


def summable(columns: np.ndarray, terms: int) -> np.ndarray:
    """Round columns (n, k) without NaN so that the sum of up to `terms` values of a column is exact.

    Sums of multiples of one power of two are exact as long as they fit in 53 bits. The rounding error is below 1e-10 of
    the column's largest magnitude for up to 100,000 terms.
    """
    greatest = np.abs(columns).max(axis=0, initial=0)
    _, exponents = np.frexp(greatest)
    steps = np.ldexp(1.0, exponents - (BITS - 2 - int(np.ceil(np.log2(max(terms, 1))))))
    return np.round(columns / steps) * steps


def sums_by_cluster(values: np.ndarray, codes: np.ndarray, count: int) -> np.ndarray:
    """Return the sum of the values (n,) in each cluster, (count,)."""
    return np.bincount(codes, weights=values, minlength=count)


def effective_clusters(counts: np.ndarray) -> float:
    """Return the number of equally large clusters that would be just as informative: n^2 / sum n_c^2 (Kish, 1965).

    If all clusters have the same size, the result is their number. The more samples are in a few large clusters, the
    smaller the result.
    """
    squares = float((counts.astype(float) ** 2).sum())
    return float(counts.sum()) ** 2 / squares if squares else 0.0


class Matched:
    """Cluster sums of columns of scores, for comparing pairs of columns on their common samples.

    Columns with the same missing samples share their sums, so many pairs need only a few sums.

    Attributes:
        columns: Cluster sums (clusters,), one array per sum. The list grows as pairs are requested, until `forget` is
            called.
        between: For each column, the number of clusters with a score that lies inside the range and not at one of its
            ends. The number is 0 for 0/1 scores, and small for rare events.

    Args:
        columns: Columns of scores (n,); NaN for a sample without a score.
        codes: Cluster (n,) of each sample.
        limits: Range (low, high) of the scores; either end may be infinite.
    """

    def __init__(
        self, columns: Sequence[np.ndarray], codes: np.ndarray, limits: tuple[float, float] = (-np.inf, np.inf)
    ):
        self.codes, self.clusters = codes, int(codes.max(initial=-1)) + 1
        self.known = np.stack([np.isfinite(column) for column in columns], axis=1)
        self._given = columns
        self.limits, self.width = limits, limits[1] - limits[0]
        self.between = [
            np.count_nonzero(np.bincount(codes[known & (column != limits[0]) & (column != limits[1])]))
            for column, known in zip(columns, self.known.T, strict=True)
        ]
        self.columns: list[np.ndarray] = []
        self._indices: dict[tuple[int, bytes], int] = {}
        self._counts: dict[bytes, np.ndarray] = {}
        patterns: dict[bytes, int] = {}
        self._pattern = [
            patterns.setdefault(np.packbits(mask).tobytes(), index) for index, mask in enumerate(self.known.T)
        ]
        self._common: dict[tuple[int, int], tuple[bytes, np.ndarray]] = {}

    def pair(self, first: int, second: int) -> tuple[int, int, np.ndarray]:
        """Return (index of the first's sums in `columns`, index of the second's, common samples per cluster)."""
        key, common = self._samples(first, second)
        return self._index(first, key, common), self._index(second, key, common), self.counts(first, second)

    def counts(self, first: int, second: int) -> np.ndarray:
        """Return the number of common samples of two columns in each cluster.

        Pairs with the same common samples share the array.
        """
        key, common = self._samples(first, second)
        if key not in self._counts:
            self._counts[key] = sums_by_cluster(common.astype(float), self.codes, self.clusters)
        return self._counts[key]

    def forget(self) -> None:
        """Drop the sums of pairs, which need more memory than the scores if columns lack different samples."""
        self.columns, self._indices, self._counts, self._common = [], {}, {}, {}

    def _samples(self, first: int, second: int) -> tuple[bytes, np.ndarray]:
        """Return (cache key of the common samples, mask of the common samples) of two columns."""
        low, high = sorted((self._pattern[first], self._pattern[second]))
        if (low, high) not in self._common:
            common = self.known[:, low] & self.known[:, high]
            self._common[low, high] = np.packbits(common).tobytes(), common
        return self._common[low, high]

    def _index(self, column: int, key: bytes, common: np.ndarray) -> int:
        """Return the index in `columns` of the sums of a column over these samples, computing them if necessary."""
        if (column, key) not in self._indices:
            self._indices[column, key] = len(self.columns)
            values = np.where(self.known[:, column], self._given[column], 0)
            kept = np.where(common, summable(values[:, None], len(values))[:, 0], 0)
            self.columns.append(sums_by_cluster(kept, self.codes, self.clusters))
        return self._indices[column, key]
