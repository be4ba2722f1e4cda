"""The metric as a module of `evaluate`, which says what score.py declares."""

import evaluate

from saliency_bench.scoring.evaluate_shell import SweepShell

from .score import saliency_precision, saliency_precision_sweep


class SaliencyPrecision(SweepShell, evaluate.Metric):
    """Declared in score.py."""

    function = staticmethod(saliency_precision)
    sweep = staticmethod(saliency_precision_sweep)
