"""`evaluate` module: contrastive contrastivity score, computed in score.py; needs saliency_bench."""

import evaluate

from saliency_bench.scoring.evaluate_shell import ExplainerShell


class SaliencyCcs(ExplainerShell, evaluate.Metric):
    """By how much the top class leads the runner-up of its group once the evidence for the runner-up is taken out."""
