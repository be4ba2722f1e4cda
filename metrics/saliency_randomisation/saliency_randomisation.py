"""`evaluate` module: randomisation test of an explainer. The metric is in score.py; it needs saliency_bench."""

import evaluate

from saliency_bench.scoring.evaluate_shell import ExplainerShell


class SaliencyRandomisation(ExplainerShell, evaluate.Metric):
    """Similarity of saliency maps before and after the classifier's layers are re-initialised, from the logits down."""
