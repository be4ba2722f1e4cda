"""Tests of a mean by betting, valid for scores of any distribution (Waudby-Smith and Ramdas, 2024).

Let Y_c >= -1 be independent numbers. A bet b against the claim that their mean is at most 0 yields the wealth

    W_b = product over clusters c (1 + b Y_c)

If the claim is true, each factor has an expectation of at most 1. The weighted sum over `BETS` therefore exceeds
1 / tail with a probability of at most `tail` (Markov).

"Estimating means of bounded random variables by betting", JRSS B 86, section 5 and appendix (a mixture of constant
bets). `read/analysis/sequential.py` uses the same bets to drop candidates.
"""

import numpy as np

BETS = np.array([0.95, *(0.5**power for power in range(1, 8))])
WEIGHTS = 0.5 ** np.arange(len(BETS)) / (0.5 ** np.arange(len(BETS))).sum()
STEPS = 40  # steps of a bisection, which narrow the range to 1e-12 of its width


def log_wealth(scaled: np.ndarray) -> float:
    """Return log(sum over `BETS` of weight * prod (1 + bet * Y)), for Y (C,) of at least -1."""
    logs = np.log1p(BETS[:, None] * scaled[None, :]).sum(axis=1)
    return float(np.logaddexp.reduce(logs + np.log(WEIGHTS)))
