"""Module for `evaluate`; the metric is declared in score.py.

Example:
    >>> import evaluate
    >>> import torch
    >>> import saliency_bench as sb
    >>> class Two(torch.nn.Module):
    ...     # Always predicts class 0.
    ...     def forward(self, images):
    ...         return torch.tensor([[1.0, 0.0]]).repeat(len(images), 1)
    ...
    >>> def explainer(classifier, images, target):
    ...     # Always marks the upper left corner.
    ...     maps = torch.zeros(len(images), 4, 4)
    ...     maps[:, 0, 0] = 1
    ...     return maps
    ...
    >>> consistency = evaluate.load("saliency_consistency")
    >>> classifier = sb.load_classifier(Two(), mean=0, std=1)  # it expects images in [0, 1]
    >>> result = consistency.compute(
    ...     images=torch.ones(1, 3, 4, 4), classifier=classifier, explainer=explainer, transform="flip_horizontal"
    ... )
    >>> print(round(result["saliency_consistency"], 4))
    2.0
"""

import evaluate

from saliency_bench.compute.scoring.evaluate_shell import ExplainerShell


class SaliencyConsistency(ExplainerShell, evaluate.Metric):
    """Wrapper for `evaluate`. The metric itself is declared in score.py."""
