"""`evaluate` module: confidence by an explainer's maps. The metric itself is in score.py; it needs saliency_bench."""

import evaluate

from saliency_bench.scoring.evaluate_shell import ExplainerShell


class SaliencyConfidence(ExplainerShell, evaluate.Metric):
    """Change of the probability of the class, or of the entropy, with salient regions pasted into pictures of it."""
