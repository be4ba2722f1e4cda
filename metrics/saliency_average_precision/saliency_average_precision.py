"""Module for `evaluate`; the metric is declared in score.py.

Example:
    >>> import evaluate
    >>> average_precision = evaluate.load("saliency_average_precision")
    >>> maps = [[[0, 0, 0, 0], [0, 8, 0, 0], [0, 0, 6, 7], [0, 0, 4, 2]]]
    >>> masks = [[[0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 1, 1], [0, 0, 1, 1]]]
    >>> result = average_precision.compute(predictions=maps, references=masks)
    >>> print(round(result["saliency_average_precision"], 3))
    0.679
"""

import evaluate

from saliency_bench.compute.scoring.evaluate_shell import MapShell

from .score import saliency_average_precision


class SaliencyAveragePrecision(MapShell, evaluate.Metric):
    """Wrapper for `evaluate`. The metric itself is declared in score.py."""

    function = staticmethod(saliency_average_precision)
