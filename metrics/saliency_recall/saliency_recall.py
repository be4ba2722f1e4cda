"""`evaluate` module: pixel-wise recall of saliency maps against masks. The metric itself is in score.py."""

import evaluate

from saliency_bench.scoring.evaluate_shell import SweepShell

from .score import saliency_recall, saliency_recall_sweep


class SaliencyRecall(SweepShell, evaluate.Metric):
    """Mean over samples of the share of the mask that is salient, {normalised saliency map > threshold}."""

    function = staticmethod(saliency_recall)
    sweep = staticmethod(saliency_recall_sweep)
