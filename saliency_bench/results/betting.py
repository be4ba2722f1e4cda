r"""Bounds on a mean that hold for scores of any shape, by betting against lower means (Waudby-Smith and Ramdas, 2024).

Scores v >= 0 come in clusters c with sums S_c and n_c samples; N is the largest n_c. A bet b against the claim that
their mean is m yields the wealth

    W_b(m) = product over clusters (1 + b Y_c),    Y_c = (S_c - m n_c) / (N m) >= -1

If the mean is at most m, each factor has an expectation of at most 1. The weighted sum over `BETS` therefore exceeds
1 / tail with a probability of at most `tail` (Markov). The lower bound is the greatest m that the sample refutes in
this way. The only assumptions are that clusters are drawn independently and that no score is below 0.

"Estimating means of bounded random variables by betting", JRSS B 86, section 5 and appendix (a mixture of constant
bets); `analysis/sequential.py` drops candidates by the same bets.
"""

import numpy as np

BETS = np.array([0.95, *(0.5**power for power in range(1, 8))])
WEIGHTS = 0.5 ** np.arange(len(BETS)) / (0.5 ** np.arange(len(BETS))).sum()
STEPS = 40  # of a bisection, which leaves 1e-12 of the range


def log_wealth(scaled: np.ndarray) -> float:
    """Return log of the weighted sum over `BETS` of prod (1 + bet * Y), for Y (C,) of at least -1."""
    logs = np.log1p(BETS[:, None] * scaled[None, :]).sum(axis=1)
    return float(np.logaddexp.reduce(logs + np.log(WEIGHTS)))


def lower_bound(sums: np.ndarray, counts: np.ndarray, tail: float) -> float:
    """Return a lower bound on the mean of non-negative scores that fails with a probability of at most `tail`.

    Args:
        sums: (C,) sum of the scores of each cluster.
        counts: (C,) number of samples of each cluster; clusters without samples are ignored.
        tail: greatest probability that the mean is below the bound.
    """
    sums, counts = sums[counts > 0], counts[counts > 0]
    low, high = 0.0, float(sums.sum() / counts.sum())
    for _ in range(STEPS):
        middle = (low + high) / 2
        if middle <= 0:
            break
        refuted = log_wealth((sums - middle * counts) / (counts.max() * middle)) >= -np.log(tail)
        low, high = (middle, high) if refuted else (low, middle)
    return low
