"""Module for `evaluate`; the metric is declared in score.py.

Example:
    >>> import evaluate
    >>> import torch
    >>> import saliency_bench as sb
    >>> class Corner(torch.nn.Module):
    ...     # Predicts class 1 if more than half of the four pixels in the upper left corner are white.
    ...     def forward(self, images):
    ...         white = images[:, :, :2, :2].mean(dim=(1, 2, 3))
    ...         return torch.stack([1 - white, white], dim=1) * 4
    ...
    >>> maps, images = torch.zeros(1, 4, 4), torch.zeros(1, 3, 4, 4)
    >>> maps[0, :2, :2], images[:, :, :2, :2] = torch.tensor([[4.0, 3], [2, 1]]), 1
    >>> metric = evaluate.load("saliency_road")
    >>> classifier = sb.load_classifier(Corner(), mean=0, std=1)  # it expects images in [0, 1]
    >>> result = metric.compute(predictions=maps, references=[1], images=images, classifier=classifier)
    >>> print(round(result["saliency_road"], 4))
    0.25
"""

import evaluate

from saliency_bench.compute.scoring.evaluate_shell import CurveShell


class SaliencyRoad(CurveShell, evaluate.Metric):
    """Wrapper for `evaluate`. The metric itself is declared in score.py."""
