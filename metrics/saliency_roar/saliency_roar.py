"""Module for `evaluate`; the metric is declared in score.py.

Example:
    >>> import evaluate
    >>> metric = evaluate.load("saliency_roar")
    >>> result = metric.compute(predictions=[0.9, 0.6, 0.3, 0.1], references=[0.0, 0.1, 0.5, 1.0])
    >>> print(round(result["saliency_roar"], 4))
    0.355
"""

import evaluate

from saliency_bench.compute.scoring.evaluate_shell import AreaShell


class SaliencyRoar(AreaShell, evaluate.Metric):
    """Wrapper for `evaluate`. The metric itself is declared in score.py."""
