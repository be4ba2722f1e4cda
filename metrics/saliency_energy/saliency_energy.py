"""Module for `evaluate`; the metric is declared in score.py.

Example:
    >>> import evaluate
    >>> energy = evaluate.load("saliency_energy")
    >>> maps = [[[0, 0, 0, 0], [-3, 8, 0, 0], [0, 0, 6, 7], [0, 0, 4, 5]]]
    >>> masks = [[[0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 1, 1], [0, 0, 1, 1]]]
    >>> result = energy.compute(predictions=maps, references=masks)
    >>> print(round(result["saliency_energy"], 4))
    0.7333
"""

import evaluate

from saliency_bench.compute.scoring.evaluate_shell import MapShell

from .score import saliency_energy


class SaliencyEnergy(MapShell, evaluate.Metric):
    """Wrapper for `evaluate`. The metric itself is declared in score.py."""

    function = staticmethod(saliency_energy)
