"""`evaluate` module: pixel-wise average precision of saliency maps against masks. The metric itself is in score.py."""

import evaluate

from saliency_bench.scoring.evaluate_shell import MapShell

from .score import saliency_average_precision


class SaliencyAveragePrecision(MapShell, evaluate.Metric):
    """Mean over samples of the average precision with which the order of a saliency map's pixels finds the mask."""

    function = staticmethod(saliency_average_precision)
