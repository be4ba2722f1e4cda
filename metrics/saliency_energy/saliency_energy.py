"""The metric as a module of `evaluate`, which says what score.py declares."""

import evaluate

from saliency_bench.scoring.evaluate_shell import MapShell

from .score import saliency_energy


class SaliencyEnergy(MapShell, evaluate.Metric):
    """Declared in score.py."""

    function = staticmethod(saliency_energy)
