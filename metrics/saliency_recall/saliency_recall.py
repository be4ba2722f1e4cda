"""The metric as a module of `evaluate`, which says what score.py declares."""

import evaluate

from saliency_bench.scoring.evaluate_shell import SweepShell

from .score import saliency_recall, saliency_recall_sweep


class SaliencyRecall(SweepShell, evaluate.Metric):
    """Declared in score.py."""

    function = staticmethod(saliency_recall)
    sweep = staticmethod(saliency_recall_sweep)
