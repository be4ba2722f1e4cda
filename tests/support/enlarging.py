"""Compute the tolerance of maps whose small map is rounded before enlargement."""

import numpy as np


def rounding(cells) -> float:
    """Return the largest tolerance in a batch (B, h, w): half a step (2^-15 of the range) plus half of 2^-8 steps."""
    cells = np.asarray(cells, dtype=np.float64)
    spans = np.ptp(cells.reshape(len(cells), -1), axis=1)
    return float(spans.max()) / 2**15 * (1 / 2 + 1 / 2**9)
