"""`evaluate` module: input dependence rate of an explainer, computed in score.py; needs saliency_bench."""

import evaluate

from saliency_bench.scoring.evaluate_shell import ExplainerShell


class SaliencyIdr(ExplainerShell, evaluate.Metric):
    """How often a scene model's map gives a region more when an object that means nothing to it is pasted there."""
