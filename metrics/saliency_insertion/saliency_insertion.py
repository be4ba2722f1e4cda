"""`evaluate` module: insertion score of saliency maps. The metric itself is in score.py; it needs saliency_bench."""

import evaluate

from saliency_bench.scoring.evaluate_shell import CurveShell


class SaliencyInsertion(CurveShell, evaluate.Metric):
    """Area under the class probability as the top pixels of a saliency map enter a black, mean or blurred reference."""
