"""Module for `evaluate`; the metric is declared in score.py.

Example:
    >>> import evaluate
    >>> import torch
    >>> import saliency_bench as sb
    >>> class Halves(torch.nn.Module):
    ...     # The upper half is evidence for class A, the lower half for B; C and D share the rest.
    ...     def forward(self, images):
    ...         upper, lower = images[:, :, :2].mean(dim=(1, 2, 3)), images[:, :, 2:].mean(dim=(1, 2, 3))
    ...         rest = 1 - upper / 2 - 0.3 * lower
    ...         return torch.stack([upper / 2, 0.3 * lower, 0.75 * rest, 0.25 * rest], dim=1).clamp(min=1e-12).log()
    ...
    >>> def explainer(classifier, images, target):
    ...     # Ground truth: the upper half has the target's weight of A, the lower half its weight of B.
    ...     maps = torch.zeros(len(images), 4, 4)
    ...     maps[:, :2], maps[:, 2:] = 2 * target[:, 0, None, None], target[:, 1, None, None]
    ...     return maps
    ...
    >>> metric = evaluate.load("saliency_ccs")
    >>> classifier = sb.load_classifier(Halves(), mean=0, std=1)  # it expects images in [0, 1]
    >>> groups = {"one": [0, 1], "two": [2, 3]}
    >>> result = metric.compute(
    ...     images=torch.ones(1, 3, 4, 4), classifier=classifier, explainer=explainer, groups=groups
    ... )
    >>> print(round(result["saliency_ccs"], 4))
    0.3375
"""

import evaluate

from saliency_bench.compute.scoring.evaluate_shell import ExplainerShell


class SaliencyCcs(ExplainerShell, evaluate.Metric):
    """Wrapper for `evaluate`. The metric itself is declared in score.py."""
