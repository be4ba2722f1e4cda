"""Module for `evaluate`; the metric is declared in score.py.

Example:
    >>> import evaluate
    >>> import torch
    >>> import saliency_bench as sb
    >>> class Corner(torch.nn.Module):
    ...     # A brighter upper left quarter makes class 1 more probable.
    ...     def forward(self, images):
    ...         bright = images[:, :, :2, :2].mean(dim=(1, 2, 3))
    ...         return torch.stack([0 * bright, 2.1972246 * bright], dim=1)  # 2 ln 3
    ...
    >>> def explainer(classifier, images, target):
    ...     # Marks the upper left quarter.
    ...     maps = torch.zeros(len(images), 4, 4)
    ...     maps[:, :2, :2] = 1
    ...     return maps
    ...
    >>> confidence = evaluate.load("saliency_confidence")
    >>> classifier = sb.load_classifier(Corner(), mean=0, std=1)  # it expects images in [0, 1]
    >>> images = torch.stack([torch.zeros(3, 4, 4), torch.ones(3, 4, 4)])
    >>> result = confidence.compute(images=images, references=[1, 1], classifier=classifier, explainer=explainer, k=1)
    >>> print(round(result["saliency_confidence"], 4))
    0.4
"""

import evaluate

from saliency_bench.compute.scoring.evaluate_shell import ExplainerShell


class SaliencyConfidence(ExplainerShell, evaluate.Metric):
    """Wrapper for `evaluate`. The metric itself is declared in score.py."""
