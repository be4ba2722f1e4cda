"""`evaluate` module: the area under the accuracies of networks that a run of saliency_bench has trained."""

import evaluate

from saliency_bench.scoring.evaluate_shell import AreaShell


class SaliencyRoar(AreaShell, evaluate.Metric):
    """Area under the accuracy of networks trained on pictures without the top pixels of saliency maps."""
