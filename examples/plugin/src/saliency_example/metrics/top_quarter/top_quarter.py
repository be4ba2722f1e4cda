"""`evaluate` module: how much of the highest quarter of a map lies in the mask. The metric itself is in score.py."""

import evaluate

from saliency_bench.scoring.evaluate_shell import MapShell

from .score import top_quarter


class TopQuarter(MapShell, evaluate.Metric):
    """Mean over samples of the share of the highest quarter of the pixels that lies in the mask."""

    function = staticmethod(top_quarter)
