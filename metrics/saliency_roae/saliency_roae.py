"""Module for `evaluate`; the metric is declared in score.py.

Example:
    >>> import evaluate
    >>> import torch
    >>> import saliency_bench as sb
    >>> class Corner(torch.nn.Module):
    ...     # Probability of class 1 = fraction of white pixels among the four in the upper left corner.
    ...     def forward(self, images):
    ...         white = images[:, :, :2, :2].mean(dim=(1, 2, 3))
    ...         return torch.stack([1 - white, white], dim=1).log()
    ...
    >>> images = torch.ones(1, 3, 4, 4)
    >>> maps = torch.arange(16.0, 0, -1).view(1, 4, 4)
    >>> metric = evaluate.load("saliency_roae")
    >>> classifier = sb.load_classifier(Corner(), mean=0, std=1)  # it expects images in [0, 1]
    >>> result = metric.compute(predictions=maps, references=[1], images=images, classifier=classifier)
    >>> print(round(result["saliency_roae"], 4))
    0.075
"""

import evaluate

from saliency_bench.compute.scoring.evaluate_shell import CurveShell


class SaliencyRoae(CurveShell, evaluate.Metric):
    """Wrapper for `evaluate`. The metric itself is declared in score.py."""
