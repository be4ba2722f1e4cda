"""Module for `evaluate`; the metric is declared in score.py.

Example:
    >>> import evaluate
    >>> iosr = evaluate.load("saliency_iosr")
    >>> maps = [[[0, 0, 0, 0], [0, 8, 0, 0], [0, 0, 6, 7], [0, 0, 4, 5]]]
    >>> masks = [[[0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 1, 1], [0, 0, 1, 1]]]
    >>> print(iosr.compute(predictions=maps, references=masks))
    {'saliency_iosr': 0.75}
    >>> print(iosr.compute(predictions=maps, references=masks, threshold=0.8, per_sample=True))
    {'saliency_iosr': 0.5, 'scores': [0.5]}
"""

import evaluate

from saliency_bench.compute.scoring.evaluate_shell import MapShell

from .score import saliency_iosr


class SaliencyIosr(MapShell, evaluate.Metric):
    """Wrapper for `evaluate`. The metric itself is declared in score.py."""

    function = staticmethod(saliency_iosr)
