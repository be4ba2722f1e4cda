"""`evaluate` module: accuracy as pixels are removed and imputed. The metric is in score.py; it needs saliency_bench."""

import evaluate

from saliency_bench.scoring.evaluate_shell import CurveShell


class SaliencyRoad(CurveShell, evaluate.Metric):
    """Area under the classifier's accuracy over the share of each image's pixels that is removed and imputed (ROAD)."""
