"""The metric as a module of `evaluate`, which says what score.py declares."""

import evaluate

from saliency_bench.scoring.evaluate_shell import MapShell

from .score import saliency_iosr


class SaliencyIosr(MapShell, evaluate.Metric):
    """Declared in score.py."""

    function = staticmethod(saliency_iosr)
