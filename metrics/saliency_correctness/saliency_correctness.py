"""`evaluate` module: correctness of an explainer. The metric itself is in score.py; it needs saliency_bench."""

import evaluate

from saliency_bench.scoring.evaluate_shell import ExplainerShell


class SaliencyCorrectness(ExplainerShell, evaluate.Metric):
    """Pseudo-F1 of the accuracies with salient regions pasted into pictures of their class, and with the rest."""
