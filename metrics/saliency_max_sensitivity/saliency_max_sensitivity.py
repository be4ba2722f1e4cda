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
    ...     # All values are 1, except for a 2 at the first pixel of a white image or the second of any other image.
    ...     maps = torch.ones(len(images), 4, 4)
    ...     white = (images == 1).all(dim=(1, 2, 3))
    ...     maps[white, 0, 0], maps[~white, 0, 1] = 2, 2
    ...     return maps
    ...
    >>> sensitivity = evaluate.load("saliency_max_sensitivity")
    >>> classifier = sb.load_classifier(Two(), mean=0, std=1)  # it expects images in [0, 1]
    >>> result = sensitivity.compute(images=torch.ones(1, 3, 4, 4), classifier=classifier, explainer=explainer)
    >>> print(round(result["saliency_max_sensitivity"], 4))  # sqrt(2 / 19)
    0.3244
"""

import evaluate

from saliency_bench.compute.scoring.evaluate_shell import ExplainerShell


class SaliencyMaxSensitivity(ExplainerShell, evaluate.Metric):
    """Wrapper for `evaluate`. The metric itself is declared in score.py."""
