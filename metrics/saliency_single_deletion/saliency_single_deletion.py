"""`evaluate` module: single deletion score. The metric itself is in score.py; it needs saliency_bench."""

import evaluate

from saliency_bench.scoring.evaluate_shell import CurveShell


class SaliencySingleDeletion(CurveShell, evaluate.Metric):
    """Spearman correlation of what a map gives each patch and of how far the logit falls without that patch."""
