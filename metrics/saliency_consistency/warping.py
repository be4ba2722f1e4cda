"""FastDTW (Salvador and Chan, 2007) compiled: number and path of the library `fastdtw` 0.3.4 for series of vectors.

The distance of two vectors is the sum of their absolute differences; a series of numbers is one of vectors of length 1.
Both series are halved by averaging neighbours until one has fewer than radius + 2; there all alignments are tried.
Going back up, a path may only run through the cells of the coarser path and those up to `radius` away. Where several
ways to a cell cost the same, the library takes the first of: advance in x, advance in y, advance in both. Which one is
taken decides where the finer level may look, and so the number itself: all sums are made and compared as there, bit for
bit for series of numbers.

Compiled when first called, once per process (about two seconds): a cache on disk would be written beside an installed
package, which may not be writable.
"""

import numpy as np
from numba import njit

UP, LEFT, BOTH = 1, 2, 3  # how the best way reaches a cell


@njit
def halved(x):
    """Return the means of neighbours (N, D); an odd last one is dropped."""
    half = np.empty((len(x) // 2, x.shape[1]))
    for i in range(len(half)):
        for d in range(x.shape[1]):
            half[i, d] = (x[2 * i, d] + x[2 * i + 1, d]) / 2
    return half


@njit
def warped(x, y, low, high):
    """Return (distance, path (n, 2)) of the best alignment with row i in columns low[i] to high[i], inclusive."""
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
    """Return (low, high), the columns each row of the finer level may use: `radius` cells around the coarser path."""
    low, high = np.full(rows, columns), np.full(rows, -1)
    for step in range(len(path)):
        for row in range(2 * (path[step, 0] - radius), 2 * (path[step, 0] + radius + 1)):
            if 0 <= row < rows:
                low[row] = min(low[row], max(2 * (path[step, 1] - radius), 0))
                high[row] = max(high[row], min(2 * (path[step, 1] + radius) + 1, columns - 1))
    return low, high


def fastdtw(x, y, radius=1):
    """Return (distance, path (n, 2) of indices into x and y) of Float64 series (N,) or (N, D), N at least 1."""
    return _fastdtw(x.reshape(len(x), -1), y.reshape(len(y), -1), radius)


@njit
def _fastdtw(x, y, radius):
    """Return the same for series (N, D)."""
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
