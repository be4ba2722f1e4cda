"""`evaluate` module: share of a map's positive values that lies in the mask. The metric itself is in score.py."""

import evaluate

from saliency_bench.scoring.evaluate_shell import MapShell

from .score import saliency_energy


class SaliencyEnergy(MapShell, evaluate.Metric):
    """Mean over samples of the share of a map's positive values, by their sum, that lies in the mask."""

    function = staticmethod(saliency_energy)
