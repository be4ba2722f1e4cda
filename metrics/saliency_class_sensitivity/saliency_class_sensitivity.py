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
    ...     # Marks the first row for class 0 and the first two rows for class 1.
    ...     maps = torch.zeros(len(images), 4, 4)
    ...     maps[:, 0], maps[:, 1] = 1, target[:, 1, None]
    ...     return maps
    ...
    >>> sensitivity = evaluate.load("saliency_class_sensitivity")
    >>> classifier = sb.load_classifier(Two(), mean=0, std=1)  # it expects images in [0, 1]
    >>> result = sensitivity.compute(images=torch.ones(1, 3, 4, 4), classifier=classifier, explainer=explainer)
    >>> print(round(result["saliency_class_sensitivity"], 4))
    0.5774
"""

import evaluate

from saliency_bench.compute.scoring.evaluate_shell import ExplainerShell


class SaliencyClassSensitivity(ExplainerShell, evaluate.Metric):
    """Wrapper for `evaluate`. The metric itself is declared in score.py."""
