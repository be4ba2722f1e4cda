"""The metric as a module of `evaluate`, which says what score.py declares."""

import evaluate

from saliency_bench.compute.scoring.evaluate_shell import MapShell

from .score import top_quarter


class TopQuarter(MapShell, evaluate.Metric):
    """Declared in score.py."""

    function = staticmethod(top_quarter)
