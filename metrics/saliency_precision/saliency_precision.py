"""Module for `evaluate`; the metric is declared in score.py.

Example:
    >>> import evaluate
    >>> precision = evaluate.load("saliency_precision")
    >>> maps = [[[0, 0, 0, 0], [0, 8, 0, 0], [0, 0, 6, 7], [0, 0, 4, 2]]]
    >>> masks = [[[0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 1, 1], [0, 0, 1, 1]]]
    >>> print(precision.compute(predictions=maps, references=masks))
    {'saliency_precision': 0.6666666666666666}
    >>> print(precision.compute(predictions=maps, references=masks, threshold=[0.1, 0.5, "mask_area"]))
    {'saliency_precision': [0.8, 0.6666666666666666, 0.75]}
"""

import evaluate

from saliency_bench.compute.scoring.evaluate_shell import SweepShell

from .score import saliency_precision, saliency_precision_sweep


class SaliencyPrecision(SweepShell, evaluate.Metric):
    """Wrapper for `evaluate`. The metric itself is declared in score.py."""

    function = staticmethod(saliency_precision)
    sweep = staticmethod(saliency_precision_sweep)
