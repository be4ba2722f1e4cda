"""`evaluate` module: class deviation score. The metric itself is in score.py; it needs saliency_bench."""

import evaluate

from saliency_bench.scoring.evaluate_shell import CurveShell


class SaliencyCds(CurveShell, evaluate.Metric):
    """Mean shift of the class probability when a growing share of a map's top pixels is masked."""
