"""`evaluate` module: accuracy on salient regions alone. The metric is in score.py; it needs saliency_bench."""

import evaluate

from saliency_bench.scoring.evaluate_shell import CurveShell


class SaliencyOwnRegion(CurveShell, evaluate.Metric):
    """The classifier's accuracy on pictures that show only the salient region of their own map."""
