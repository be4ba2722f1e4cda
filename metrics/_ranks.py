"""Rank correlation of rows of numbers, of which those that differ by rounding alone tie."""

import numpy as np
from scipy.stats import rankdata

LEVELS = 2**15  # steps of a row's range; within one, numbers tie
ROUNDING = 1e-6  # of the largest, below which numbers do not differ


def spearman(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return Spearman correlations, Float64 (B,), of rows (B, n); 0 where one of them is constant."""
    ranks = [rankdata(_steps(rows), axis=1) - (rows.shape[1] + 1) / 2 for rows in (first, second)]
    lengths = np.sqrt((ranks[0] ** 2).sum(axis=1) * (ranks[1] ** 2).sum(axis=1))
    return np.divide((ranks[0] * ranks[1]).sum(axis=1), lengths, out=np.zeros(len(first)), where=lengths > 0)


def constant_rows(rows: np.ndarray) -> np.ndarray:
    """Return which rows are constant but for rounding, Bool (B,)."""
    return _steps(rows).max(axis=1) == 0


def _steps(rows: np.ndarray) -> np.ndarray:
    """Return rows in steps of 1/32768 of their range, from 0; zeros for numbers that differ only by rounding."""
    low, high = rows.min(axis=1, keepdims=True), rows.max(axis=1, keepdims=True)
    spread = high - low
    constant = ~(spread > ROUNDING * np.maximum(np.abs(low), np.abs(high)))
    return np.rint((rows - low) / np.where(constant, 1, spread) * LEVELS) * ~constant
