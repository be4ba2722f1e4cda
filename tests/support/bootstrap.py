"""Draw clusters as the package draws them, for second implementations of bootstrap intervals."""

import math

import numpy as np
from scipy import stats

from saliency_bench.utils.seeds import random_bits, seed_of


def draws(clusters, seed=0):
    """Return the numbers of the clusters in each of 2,000 draws."""
    bits = random_bits(seed_of(seed, "bootstrap", clusters, 0), 2000 * clusters).reshape(2000, clusters)
    return (bits % np.uint64(clusters)).astype(int)


def expanded(clusters):
    """Return the percentiles of an expanded bootstrap interval. It is expanded because draws vary less than samples."""
    tail = 100 * stats.norm.cdf(-math.sqrt(clusters / (clusters - 1)) * stats.t.ppf(0.975, clusters - 1))
    return [tail, 100 - tail]
