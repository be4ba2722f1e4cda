"""FastDTW (Salvador and Chan, 2007) compiled: number and path of the library `fastdtw` 0.3.4 for 1-D series, radius 1.

Both series are halved by averaging neighbours until one has fewer than three values; there all alignments are tried.
Going back up, a path may only run through the cells of the coarser path and their neighbours. Where several ways to a
cell cost the same, the library takes the first of: advance in x, advance in y, advance in both. Which one is taken
decides where the finer level may look, and so the number itself: all sums are made and compared as there, bit for bit.

Compiled when first called, once per process (about two seconds): a cache on disk would be written beside an installed
package, which may not be writable.
"""

import numpy as np
from numba import njit

UP, LEFT, BOTH = 1, 2, 3  # how the best way reaches a cell


@njit
def halved(x):
    """Means of neighbours; an odd last value is dropped."""
    half = np.empty(len(x) // 2)
    for i in range(len(half)):
        half[i] = (x[2 * i] + x[2 * i + 1]) / 2
    return half


@njit
def warped(x, y, low, high):
    """(distance, path (n, 2)) of the best alignment whose row i stays in columns low[i] to high[i], both included."""
    start = np.zeros(len(x) + 1, np.int64)
    for i in range(len(x)):
        start[i + 1] = start[i] + high[i] - low[i] + 1
    came = np.empty(start[-1], np.uint8)
    costs, before = np.empty(len(y)), np.empty(len(y))
    for i in range(len(x)):
        for j in range(low[i], high[i] + 1):
            difference = abs(x[i] - y[j])
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
def window(path, rows, columns):
    """(low, high): the columns that each row of the finer level may use, one cell around the coarser path."""
    low, high = np.full(rows, columns), np.full(rows, -1)
    for step in range(len(path)):
        for row in range(2 * path[step, 0] - 2, 2 * path[step, 0] + 4):
            if 0 <= row < rows:
                low[row] = min(low[row], max(2 * path[step, 1] - 2, 0))
                high[row] = max(high[row], min(2 * path[step, 1] + 3, columns - 1))
    return low, high


@njit
def fastdtw(x, y):
    """(distance, path (n, 2) of indices into x and y) of Float64 series of one or more values."""
    xs, ys = [x], [y]
    while len(xs[-1]) >= 3 and len(ys[-1]) >= 3:
        xs.append(halved(xs[-1]))
        ys.append(halved(ys[-1]))
    rows, columns = len(xs[-1]), len(ys[-1])
    distance, path = warped(xs[-1], ys[-1], np.zeros(rows, np.int64), np.full(rows, columns - 1))
    for level in range(len(xs) - 2, -1, -1):
        low, high = window(path, len(xs[level]), len(ys[level]))
        distance, path = warped(xs[level], ys[level], low, high)
    return distance, path
