"""`evaluate` module: contrastive group score, computed in score.py; needs saliency_bench."""

import evaluate

from saliency_bench.scoring.evaluate_shell import ExplainerShell


class SaliencyCgs(ExplainerShell, evaluate.Metric):
    """How a group falls and its rival rises once what sets the two apart is taken out of the image."""
