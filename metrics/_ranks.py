"""Rank correlation between rows of numbers. Numbers that differ only by rounding errors share a rank."""

import numpy as np
from scipy.stats import rankdata

ROUNDING = 1e-6  # rounding error of float32, relative to the numbers from which a value was computed


def spearman(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return the Spearman correlation between matching rows (B, n), float64 (B,).

    The correlation of a constant row is 0.
    """
    ranks = [rankdata(rows, axis=1) - (rows.shape[1] + 1) / 2 for rows in (first, second)]
    lengths = np.sqrt((ranks[0] ** 2).sum(axis=1) * (ranks[1] ** 2).sum(axis=1))
    return np.divide((ranks[0] * ranks[1]).sum(axis=1), lengths, out=np.zeros(len(first)), where=lengths > 0)


def levels(rows: np.ndarray, scales: np.ndarray | None = None) -> np.ndarray:
    """Return integer levels (B, n) that order each row. Values that differ only by rounding errors share a level.

    Args:
        rows: Numbers of shape (B, n).
        scales: Magnitude of the values from which each number was computed, of shape (B, n). The error of a number is
            `ROUNDING` times its scale. If None, the scale is the largest magnitude in the row.
    """
    if scales is None:
        scales = np.broadcast_to(np.abs(rows).max(axis=1, keepdims=True), rows.shape)
    order = np.argsort(rows, axis=1, kind="stable")
    values, uncertain = (np.take_along_axis(numbers, order, axis=1) for numbers in (rows, ROUNDING * scales))
    is_above = np.diff(values, axis=1) > np.maximum(uncertain[:, 1:], uncertain[:, :-1])
    steps = np.zeros(rows.shape, int)
    np.put_along_axis(steps, order[:, 1:], np.cumsum(is_above, axis=1), axis=1)
    return steps
