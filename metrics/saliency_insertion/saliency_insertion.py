"""Module for `evaluate`; the metric is declared in score.py.

Example:
    >>> import evaluate
    >>> import torch
    >>> import saliency_bench as sb
    >>> class WhiteInTheCorner(torch.nn.Module):
    ...     # Probability of class 1 = fraction of white pixels among the four in the upper left corner.
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.register_buffer("mean", torch.zeros(1, 3, 1, 1))
    ...         self.register_buffer("std", torch.ones(1, 3, 1, 1))
    ...
    ...     def forward(self, images):
    ...         p = images[:, :, :2, :2].mean(dim=(1, 2, 3)).clamp(1e-9, 1 - 1e-9)
    ...         return torch.stack([torch.log(1 - p), torch.log(p)], dim=1)
    ...
    >>> images = torch.ones(1, 3, 4, 4)
    >>> maps = torch.zeros(1, 4, 4)
    >>> maps[0, :2, :2] = torch.tensor([[4.0, 3.0], [2.0, 1.0]])
    >>> insertion = evaluate.load("saliency_insertion")
    >>> classifier = sb.load_classifier(WhiteInTheCorner(), mean=0, std=1)  # it expects images in [0, 1]
    >>> result = insertion.compute(predictions=maps, references=[1], images=images, classifier=classifier)
    >>> print(round(result["saliency_insertion"], 4))
    0.875
"""

import evaluate

from saliency_bench.compute.scoring.evaluate_shell import CurveShell


class SaliencyInsertion(CurveShell, evaluate.Metric):
    """Wrapper for `evaluate`. The metric itself is declared in score.py."""
