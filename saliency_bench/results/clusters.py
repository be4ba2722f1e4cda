"""Clusters: samples that depend on each other, such as the slices of a patient or the rows of an image, count as one.

Scores are rounded to multiples of a power of two before they are summed (`summable`), so that sums are exact: they do
not depend on the order of the samples or the number of threads.
"""

from collections.abc import Sequence

import numpy as np

BITS = 53  # of a float64


def cluster_names(ids: Sequence[str], groups: Sequence[str | None]) -> list[str]:
    """A name for each sample's cluster: its group, or where it has none itself."""
    return [f"s{one}" if group is None else f"g{group}" for one, group in zip(ids, groups, strict=True)]


def cluster_codes(ids: Sequence[str], groups: Sequence[str | None]) -> np.ndarray:
    """(n,) the number of each sample's cluster, in the order of their names: its group, or where it has none itself."""
    names = cluster_names(ids, groups)
    codes = {name: code for code, name in enumerate(sorted(set(names)))}  # numpy would give all the length of one
    return np.array([codes[name] for name in names], dtype=np.intp)


def summable(columns: np.ndarray, terms: int) -> np.ndarray:
    """Columns (n, k) without NaN, rounded so that any sum of at most `terms` of a column's values is exact.

    The rounding is below 1e-10 of the column's greatest magnitude for up to 100,000 terms.
    """
    greatest = np.abs(columns).max(axis=0, initial=0)
    _, exponents = np.frexp(greatest)
    steps = np.ldexp(1.0, exponents - (BITS - 2 - int(np.ceil(np.log2(max(terms, 1))))))
    return np.round(columns / steps) * steps


def sums_by_cluster(values: np.ndarray, codes: np.ndarray, count: int) -> np.ndarray:
    """(count,) the sum of the values (n,) of each cluster."""
    return np.bincount(codes, weights=values, minlength=count)


class Matched:
    """Columns (n,), NaN where a sample has no score, two by two on the samples that both have, summed over clusters.

    Columns that miss the same samples share their sums, so that few are needed however many pairs there are.
    `columns` grows as pairs are asked for, an array (clusters,) each, until they are forgotten.
    """

    def __init__(self, columns: Sequence[np.ndarray], codes: np.ndarray):
        self.codes, self.clusters = codes, int(codes.max(initial=-1)) + 1
        self.known = np.stack([np.isfinite(column) for column in columns], axis=1)
        self._given = columns
        self.columns: list[np.ndarray] = []
        self._places: dict[tuple[int, bytes], int] = {}
        self._counts: dict[bytes, np.ndarray] = {}
        patterns: dict[bytes, int] = {}
        self._pattern = [
            patterns.setdefault(np.packbits(mask).tobytes(), index) for index, mask in enumerate(self.known.T)
        ]
        self._common: dict[tuple[int, int], tuple[bytes, np.ndarray]] = {}

    def pair(self, first: int, second: int) -> tuple[int, int, np.ndarray]:
        """(the places in `columns` of both on their common samples, how many of these each cluster has)."""
        key, common = self._samples(first, second)
        if key not in self._counts:
            self._counts[key] = sums_by_cluster(common.astype(float), self.codes, self.clusters)
        return self._place(first, key, common), self._place(second, key, common), self._counts[key]

    def forget(self) -> None:
        """The sums of pairs, which take more memory than all scores where columns miss different samples."""
        self.columns, self._places, self._counts, self._common = [], {}, {}, {}

    def _samples(self, first: int, second: int) -> tuple[bytes, np.ndarray]:
        low, high = sorted((self._pattern[first], self._pattern[second]))
        if (low, high) not in self._common:
            common = self.known[:, low] & self.known[:, high]
            self._common[low, high] = np.packbits(common).tobytes(), common
        return self._common[low, high]

    def _place(self, column: int, key: bytes, common: np.ndarray) -> int:
        if (column, key) not in self._places:
            self._places[column, key] = len(self.columns)
            known = np.where(self.known[:, column], self._given[column], 0)
            kept = np.where(common, summable(known[:, None], len(known))[:, 0], 0)
            self.columns.append(sums_by_cluster(kept, self.codes, self.clusters))
        return self._places[column, key]
