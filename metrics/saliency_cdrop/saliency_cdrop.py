"""`evaluate` module: weighted drop in the contrastive score. The metric is in score.py; it needs saliency_bench."""

import evaluate

from saliency_bench.scoring.evaluate_shell import CurveShell


class SaliencyCdrop(CurveShell, evaluate.Metric):
    """Drop of p_A (1 - p_B) when the salient pixels of a map have left, divided by a penalty for their number."""
