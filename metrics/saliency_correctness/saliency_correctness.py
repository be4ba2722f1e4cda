"""Module for `evaluate`; the metric is declared in score.py.

Example:
    >>> import evaluate
    >>> import torch
    >>> import saliency_bench as sb
    >>> class Corner(torch.nn.Module):
    ...     # Predicts class 1 if the upper left quarter is bright, else class 0.
    ...     def forward(self, images):
    ...         bright = images[:, :, :2, :2].mean(dim=(1, 2, 3))
    ...         return torch.stack([0.5 - bright, bright - 0.5], dim=1)
    ...
    >>> def explainer(classifier, images, target):
    ...     # Marks the upper left quarter.
    ...     maps = torch.zeros(len(images), 4, 4)
    ...     maps[:, :2, :2] = 1
    ...     return maps
    ...
    >>> correctness = evaluate.load("saliency_correctness")
    >>> classifier = sb.load_classifier(Corner(), mean=0, std=1)  # it expects images in [0, 1]
    >>> images = torch.linspace(0, 1, 8).view(8, 1, 1, 1).expand(8, 3, 4, 4)
    >>> labels = [1] * 8  # dark images are not recognised
    >>> result = correctness.compute(images=images, references=labels, classifier=classifier, explainer=explainer, k=2)
    >>> print(round(result["saliency_correctness"], 4))
    1.0
"""

import evaluate

from saliency_bench.compute.scoring.evaluate_shell import ExplainerShell


class SaliencyCorrectness(ExplainerShell, evaluate.Metric):
    """Wrapper for `evaluate`. The metric itself is declared in score.py."""
