"""The metric as a module of `evaluate`, which says what score.py declares."""

import evaluate

from saliency_bench.scoring.evaluate_shell import CurveShell


class SaliencyRoae(CurveShell, evaluate.Metric):
    """Declared in score.py."""
