"""How far a map may be from its own definition because its small map is rounded before it is enlarged."""

import numpy as np


def rounding(cells) -> float:
    """Half a step of 2^-15 of a small map's range, and half of 2^-8 of one after; the largest of a batch (B, h, w)."""
    cells = np.asarray(cells, dtype=np.float64)
    spans = np.ptp(cells.reshape(len(cells), -1), axis=1)
    return float(spans.max()) / 2**15 * (1 / 2 + 1 / 2**9)
