"""Compiled FastDTW (Salvador and Chan, 2007) with the distance and path of the library `fastdtw` 0.3.4.

The distance of two vectors is the sum of their absolute differences. Numbers are vectors of length 1.

Both series are halved by averaging neighbours until one of them has fewer than radius + 2 items. All alignments are
tried at this coarsest level. At each finer level, a path may only pass through cells of the coarser path and cells up
to `radius` away. If several steps reach a cell at the same cost, the library chooses the first of the following:
advance in x, advance in y, advance in both. This choice determines the search window of the finer level, and thereby
the distance. All sums are therefore computed and compared in the library's order, so results for series of numbers are
bit-identical.

Compilation at the first call in each process takes about two seconds. The compiled code is not cached on disk, because
numba would write the cache next to the installed package, which may be read-only.
"""

import numpy as np
from numba import njit

UP, LEFT, BOTH = 1, 2, 3  # last step of the best path to a cell


@njit
def halved(x):
    """Return the means of neighbouring items (N, D), without the last item if the length is odd."""
    half = np.empty((len(x) // 2, x.shape[1]))
    for i in range(len(half)):
        for d in range(x.shape[1]):
            half[i, d] = (x[2 * i, d] + x[2 * i + 1, d]) / 2
    return half


@njit
def warped(x, y, low, high):
    """Return (distance, path (n, 2)) of the best alignment that visits only columns low[i] to high[i] of each row i."""
    start = np.zeros(len(x) + 1, np.int64)
    for i in range(len(x)):
        start[i + 1] = start[i] + high[i] - low[i] + 1
    came = np.empty(start[-1], np.uint8)
    costs, before = np.empty(len(y)), np.empty(len(y))
    for i in range(len(x)):
        for j in range(low[i], high[i] + 1):
            difference = abs(x[i, 0] - y[j, 0])
            for d in range(1, x.shape[1]):
                difference += abs(x[i, d] - y[j, d])
            best = np.inf
            if i > 0 and low[i - 1] <= j <= high[i - 1]:
                best = before[j] + difference
            way = UP
            if j > low[i] and costs[j - 1] + difference < best:
                best, way = costs[j - 1] + difference, LEFT
            if i == 0 and j == 0:
                best, way = difference, BOTH
            elif i > 0 and low[i - 1] <= j - 1 <= high[i - 1] and before[j - 1] + difference < best:
                best, way = before[j - 1] + difference, BOTH
            costs[j] = best
            came[start[i] + j - low[i]] = way
        costs, before = before, costs
    path = np.empty((len(x) + len(y), 2), np.int64)
    i, j, steps = len(x) - 1, len(y) - 1, 0
    while i >= 0 and j >= 0:
        path[steps, 0], path[steps, 1] = i, j
        steps += 1
        way = came[start[i] + j - low[i]]
        if way != LEFT:
            i -= 1
        if way != UP:
            j -= 1
    return before[len(y) - 1], path[:steps][::-1]


@njit
def window(path, rows, columns, radius):
    """Return the first and last column of each row, at the finer level, within `radius` of the coarser path."""
    low, high = np.full(rows, columns), np.full(rows, -1)
    for step in range(len(path)):
        for row in range(2 * (path[step, 0] - radius), 2 * (path[step, 0] + radius + 1)):
            if 0 <= row < rows:
                low[row] = min(low[row], max(2 * (path[step, 1] - radius), 0))
                high[row] = max(high[row], min(2 * (path[step, 1] + radius) + 1, columns - 1))
    return low, high


def fastdtw(x, y, radius=1):
    """Return (distance, path (n, 2) of indices into x and y) of two non-empty float64 series (N,) or (N, D)."""
    return _fastdtw(x.reshape(len(x), -1), y.reshape(len(y), -1), radius)


@njit
def _fastdtw(x, y, radius):
    """Return the distance and path of two series (N, D)."""
    xs, ys = [x], [y]
    while len(xs[-1]) >= radius + 2 and len(ys[-1]) >= radius + 2:
        xs.append(halved(xs[-1]))
        ys.append(halved(ys[-1]))
    rows, columns = len(xs[-1]), len(ys[-1])
    distance, path = warped(xs[-1], ys[-1], np.zeros(rows, np.int64), np.full(rows, columns - 1))
    for level in range(len(xs) - 2, -1, -1):
        low, high = window(path, len(xs[level]), len(ys[level]), radius)
        distance, path = warped(xs[level], ys[level], low, high)
    return distance, path
