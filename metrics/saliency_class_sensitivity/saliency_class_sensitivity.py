"""`evaluate` module: class sensitivity of an explainer. The metric itself is in score.py; it needs saliency_bench."""

import evaluate

from saliency_bench.scoring.evaluate_shell import ExplainerShell


class SaliencyClassSensitivity(ExplainerShell, evaluate.Metric):
    """Pearson correlation of the saliency maps for the most and for the least likely class."""
