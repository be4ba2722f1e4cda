"""`evaluate` module: model contrast score of an explainer, computed in score.py; needs saliency_bench."""

import evaluate

from saliency_bench.scoring.evaluate_shell import ExplainerShell


class SaliencyMcs(ExplainerShell, evaluate.Metric):
    """By how much more an object gets, on average, from the map of an object model than from that of a scene model."""
