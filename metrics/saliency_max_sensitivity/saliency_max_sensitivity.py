"""`evaluate` module: max-sensitivity of an explainer. The metric itself is in score.py; it needs saliency_bench."""

import evaluate

from saliency_bench.scoring.evaluate_shell import ExplainerShell


class SaliencyMaxSensitivity(ExplainerShell, evaluate.Metric):
    """Largest relative change of a saliency map over small random changes of the image."""
