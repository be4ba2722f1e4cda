"""`evaluate` module: pointing game of saliency maps and masks. The metric itself is in score.py."""

import evaluate

from saliency_bench.scoring.evaluate_shell import MapShell

from .score import saliency_pointing_game


class SaliencyPointingGame(MapShell, evaluate.Metric):
    """Share of samples whose saliency map has its maximum inside the mask."""

    function = staticmethod(saliency_pointing_game)
