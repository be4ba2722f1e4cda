"""`evaluate` module: deletion score of saliency maps. The metric itself is in score.py; it needs saliency_bench."""

import evaluate

from saliency_bench.scoring.evaluate_shell import CurveShell


class SaliencyDeletion(CurveShell, evaluate.Metric):
    """Area under the class probability as the top pixels of a map leave for a reference picture."""
