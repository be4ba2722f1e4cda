"""Module for `evaluate`; the metric is declared in score.py.

Example:
    >>> import evaluate
    >>> import torch
    >>> import saliency_bench as sb
    >>> class Weighted(torch.nn.Module):
    ...     # Logit of class 0: the fractions of white in the four quarters, times 3, 2, 1 and 0.
    ...     def forward(self, images):
    ...         shares = torch.nn.functional.avg_pool2d(images.mean(dim=1, keepdim=True), 2).flatten(1)
    ...         return torch.stack([shares @ torch.tensor([3.0, 2.0, 1.0, 0.0]), shares[:, 0] * 0], dim=1)
    ...
    >>> images = torch.ones(1, 3, 4, 4)
    >>> maps = torch.tensor([[[8.0, 0, 9, 0], [0, 0, 0, 0], [1, 0, 0, 0], [0, 0, 0, 0]]])
    >>> metric = evaluate.load("saliency_single_deletion")
    >>> classifier = sb.load_classifier(Weighted(), mean=0, std=1)  # it expects images in [0, 1]
    >>> result = metric.compute(predictions=maps, references=[0], images=images, classifier=classifier, grid=2)
    >>> print(round(result["saliency_single_deletion"], 4))
    0.8
"""

import evaluate

from saliency_bench.compute.scoring.evaluate_shell import CurveShell


class SaliencySingleDeletion(CurveShell, evaluate.Metric):
    """Wrapper for `evaluate`. The metric itself is declared in score.py."""
