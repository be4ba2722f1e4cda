"""`evaluate` module: consistency of an explainer. The metric itself is in score.py; it needs saliency_bench."""

import evaluate

from saliency_bench.scoring.evaluate_shell import ExplainerShell


class SaliencyConsistency(ExplainerShell, evaluate.Metric):
    """Time warping distance of saliency maps of an image and of the shifted, turned or mirrored image."""
