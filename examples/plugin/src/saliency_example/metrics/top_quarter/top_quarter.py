"""Module of the metric for `evaluate`. It uses the declarations in score.py."""

import evaluate

from saliency_bench.compute.scoring.evaluate_shell import MapShell

from .score import top_quarter


class TopQuarter(MapShell, evaluate.Metric):
    """Wrapper for `evaluate`. The metric itself is declared in score.py."""

    function = staticmethod(top_quarter)
