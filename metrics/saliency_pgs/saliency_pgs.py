"""`evaluate` module: pointwise group score, computed in score.py; needs saliency_bench."""

import evaluate

from saliency_bench.scoring.evaluate_shell import ExplainerShell


class SaliencyPgs(ExplainerShell, evaluate.Metric):
    """How the classes of a group fall once the evidence for the group is taken out of the image."""
