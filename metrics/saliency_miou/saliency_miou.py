"""The metric as a module of `evaluate`, which says what score.py declares."""

import evaluate

from saliency_bench.scoring.evaluate_shell import SweepShell

from .score import saliency_miou, saliency_miou_sweep


class SaliencyMiou(SweepShell, evaluate.Metric):
    """Declared in score.py."""

    function = staticmethod(saliency_miou)
    sweep = staticmethod(saliency_miou_sweep)
