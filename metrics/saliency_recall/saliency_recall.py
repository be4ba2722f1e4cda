"""Module for `evaluate`; the metric is declared in score.py.

Example:
    >>> import evaluate
    >>> recall = evaluate.load("saliency_recall")
    >>> maps = [[[0, 0, 0, 0], [0, 8, 0, 0], [0, 0, 6, 7], [0, 0, 4, 2]]]
    >>> masks = [[[0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 1, 1], [0, 0, 1, 1]]]
    >>> print(recall.compute(predictions=maps, references=masks))
    {'saliency_recall': 0.5}
    >>> print(recall.compute(predictions=maps, references=masks, threshold=[0.1, 0.5, "mask_area"]))
    {'saliency_recall': [1.0, 0.5, 0.75]}
"""

import evaluate

from saliency_bench.compute.scoring.evaluate_shell import SweepShell

from .score import saliency_recall, saliency_recall_sweep


class SaliencyRecall(SweepShell, evaluate.Metric):
    """Wrapper for `evaluate`. The metric itself is declared in score.py."""

    function = staticmethod(saliency_recall)
    sweep = staticmethod(saliency_recall_sweep)
