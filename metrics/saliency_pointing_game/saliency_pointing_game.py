"""Module for `evaluate`; the metric is declared in score.py.

Example:
    >>> import evaluate
    >>> pointing = evaluate.load("saliency_pointing_game")
    >>> maps = [[[9, 0, 0, 0], [0, 0, 0, 0], [0, 0, 9, 0], [0, 0, 0, 0]]]
    >>> masks = [[[0, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 0]]]
    >>> print(pointing.compute(predictions=maps, references=masks))
    {'saliency_pointing_game': 0.5}
    >>> print(pointing.compute(predictions=maps, references=masks, ties="any"))
    {'saliency_pointing_game': 1.0}
    >>> print(pointing.compute(predictions=maps, references=masks, tolerance=2, per_sample=True))
    {'saliency_pointing_game': 1.0, 'scores': [1.0]}
"""

import evaluate

from saliency_bench.compute.scoring.evaluate_shell import MapShell

from .score import saliency_pointing_game


class SaliencyPointingGame(MapShell, evaluate.Metric):
    """Wrapper for `evaluate`. The metric itself is declared in score.py."""

    function = staticmethod(saliency_pointing_game)
