"""Module for `evaluate`; the metric is declared in score.py.

Example:
    >>> import evaluate
    >>> metric = evaluate.load("saliency_kar")
    >>> result = metric.compute(predictions=[0.1, 0.5, 0.8, 0.9], references=[0.0, 0.1, 0.5, 1.0])
    >>> print(round(result["saliency_kar"], 4))
    0.715
"""

import evaluate

from saliency_bench.compute.scoring.evaluate_shell import AreaShell


class SaliencyKar(AreaShell, evaluate.Metric):
    """Wrapper for `evaluate`. The metric itself is declared in score.py."""
