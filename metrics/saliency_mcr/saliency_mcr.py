"""`evaluate` module: model contrast ratio of an explainer, computed in score.py; needs saliency_bench."""

import evaluate

from saliency_bench.scoring.evaluate_shell import ExplainerShell


class SaliencyMcr(ExplainerShell, evaluate.Metric):
    """By how much more of its map an object model gives to the object than a scene model does of its own."""
