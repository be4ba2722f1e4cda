"""Run-length encoding of masks: numbers of consecutive [zeros, ones, zeros, ...], row by row.

The first length can be 0.
"""

from collections.abc import Sequence

import numpy as np

from saliency_bench.errors import UserError


def runs_of(mask: np.ndarray) -> list[int]:
    """Encode a mask, bool (H, W), as run lengths.

    >>> runs_of(np.array([[True, True, False], [False, False, True]]))
    [0, 2, 3, 1]
    """
    flat = np.concatenate([[False], mask.ravel()])
    starts = np.flatnonzero(flat[1:] != flat[:-1])
    return np.diff(np.concatenate([[0], starts, [mask.size]])).tolist()


def mask_of(runs: Sequence[int], height: int, width: int) -> np.ndarray:
    """Decode run lengths into a mask, bool (height, width).

    Raises:
        UserError: The run lengths do not match a mask of this size.
    """
    plain = isinstance(runs, list) and len(runs) <= height * width + 1
    plain = plain and all(type(length) is int and length >= 0 for length in runs)
    if not plain or sum(runs) != height * width:
        raise UserError(f"the run lengths do not match a mask of {height} x {width} pixels")
    return np.repeat(np.arange(len(runs)) % 2 == 1, runs).reshape(height, width)
