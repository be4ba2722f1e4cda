"""The metric as a module of `evaluate`, which says what score.py declares."""

import evaluate

from saliency_bench.scoring.evaluate_shell import AreaShell


class SaliencyRoar(AreaShell, evaluate.Metric):
    """Declared in score.py."""
