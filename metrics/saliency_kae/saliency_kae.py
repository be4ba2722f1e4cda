"""`evaluate` module: accuracy where top pixels are kept. The metric is in score.py; it needs saliency_bench."""

import evaluate

from saliency_bench.scoring.evaluate_shell import CurveShell


class SaliencyKae(CurveShell, evaluate.Metric):
    """Area under the classifier's accuracy over the share of each image's top pixels that alone is kept."""
