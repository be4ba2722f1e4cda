"""Module for `evaluate`; the metric is declared in score.py.

Example:
    >>> import evaluate
    >>> miou = evaluate.load("saliency_miou")
    >>> maps = [[[0, 0, 0, 0], [0, 8, 0, 0], [0, 0, 6, 7], [0, 0, 4, 2]]]
    >>> masks = [[[0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 1, 1], [0, 0, 1, 1]]]
    >>> print(miou.compute(predictions=maps, references=masks))
    {'saliency_miou': 0.4}
    >>> print(miou.compute(predictions=maps, references=masks, threshold=[0.1, 0.5, "mask_area"], per_sample=True))
    {'saliency_miou': [0.8, 0.4, 0.6], 'scores': [[0.8, 0.4, 0.6]]}
"""

import evaluate

from saliency_bench.compute.scoring.evaluate_shell import SweepShell

from .score import saliency_miou, saliency_miou_sweep


class SaliencyMiou(SweepShell, evaluate.Metric):
    """Wrapper for `evaluate`. The metric itself is declared in score.py."""

    function = staticmethod(saliency_miou)
    sweep = staticmethod(saliency_miou_sweep)
