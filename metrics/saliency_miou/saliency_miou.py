"""`evaluate` module: mean intersection over union of saliency maps and masks. The metric itself is in score.py."""

import evaluate

from saliency_bench.scoring.evaluate_shell import SweepShell

from .score import saliency_miou, saliency_miou_sweep


class SaliencyMiou(SweepShell, evaluate.Metric):
    """Mean over samples of the intersection over union of {normalised saliency map > threshold} and a mask."""

    function = staticmethod(saliency_miou)
    sweep = staticmethod(saliency_miou_sweep)
