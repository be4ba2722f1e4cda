"""Module for `evaluate`; the metric is declared in score.py.

Example:
    >>> import evaluate
    >>> import torch
    >>> import saliency_bench as sb
    >>> class First(torch.nn.Module):
    ...     # Always predicts class 0.
    ...     def forward(self, images):
    ...         return torch.tensor([[1.0, 0.0]]).repeat(len(images), 1)
    ...
    >>> scenes = sb.load_classifier(First(), mean=0, std=1, labels=["beach", "forest"])  # it expects images in [0, 1]
    >>> with_object = [[4, 4, 0, 0], [0, 0, 0, 0], [0, 0, 1, 0], [0, 0, 0, 0]]
    >>> without_object = [[4, 4, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]]
    >>> def explainer(classifier, images, target):
    ...     return torch.tensor([with_object if images.max() > 0 else without_object])
    ...
    >>> mask = [[0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 1, 1], [0, 0, 1, 1]]
    >>> idr = evaluate.load("saliency_idr")
    >>> result = idr.compute(
    ...     images=torch.ones(1, 3, 4, 4),
    ...     masks=[mask],
    ...     classifier=scenes,
    ...     other=scenes,
    ...     other_labels=[0],
    ...     columns={"image_without_object": torch.zeros(1, 3, 4, 4)},
    ...     explainer=explainer,
    ... )
    >>> print(result["saliency_idr"])
    1.0
"""

import evaluate

from saliency_bench.compute.scoring.evaluate_shell import ExplainerShell


class SaliencyIdr(ExplainerShell, evaluate.Metric):
    """Wrapper for `evaluate`. The metric itself is declared in score.py."""
