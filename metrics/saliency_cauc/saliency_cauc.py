"""`evaluate` module: contrastive AUC of saliency maps. The metric itself is in score.py; it needs saliency_bench."""

import evaluate

from saliency_bench.scoring.evaluate_shell import CurveShell


class SaliencyCauc(CurveShell, evaluate.Metric):
    """Area under p_A (1 - p_B) as the salient pixels of a map leave: how long class A outlives class B."""
