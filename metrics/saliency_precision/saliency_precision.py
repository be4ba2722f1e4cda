"""`evaluate` module: pixel-wise precision of saliency maps against masks. The metric itself is in score.py."""

import evaluate

from saliency_bench.scoring.evaluate_shell import SweepShell

from .score import saliency_precision, saliency_precision_sweep


class SaliencyPrecision(SweepShell, evaluate.Metric):
    """Mean over samples of the share of the salient pixels, {normalised map > threshold}, that lie in the mask."""

    function = staticmethod(saliency_precision)
    sweep = staticmethod(saliency_precision_sweep)
