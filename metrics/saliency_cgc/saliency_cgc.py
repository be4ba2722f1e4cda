"""`evaluate` module: class group contrastivity, computed in score.py; needs saliency_bench."""

import evaluate

from saliency_bench.scoring.evaluate_shell import ExplainerShell


class SaliencyCgc(ExplainerShell, evaluate.Metric):
    """How the top class falls and its group rises once what sets the class apart is taken out of the image."""
