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
    >>> objects = sb.load_classifier(First(), mean=0, std=1, labels=["dog", "cat"])  # they expect images in [0, 1]
    >>> scenes = sb.load_classifier(First(), mean=0, std=1, labels=["beach", "forest"])
    >>> of_object = [[0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 4, 4], [0, 0, 2, 0]]
    >>> of_scene = [[4, 4, 0, 0], [0, 0, 0, 0], [0, 0, 1, 0], [0, 0, 0, 0]]
    >>> def explainer(classifier, images, target):
    ...     return torch.tensor([of_object if "dog" in classifier.labels else of_scene])
    ...
    >>> mask = [[0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 1, 1], [0, 0, 1, 1]]
    >>> mcs = evaluate.load("saliency_mcs")
    >>> result = mcs.compute(
    ...     images=torch.ones(1, 3, 4, 4),
    ...     masks=[mask],
    ...     classifier=objects,
    ...     labels=[0],
    ...     other=scenes,
    ...     other_labels=[0],
    ...     explainer=explainer,
    ... )
    >>> print(round(result["saliency_mcs"], 4))
    0.5625
"""

import evaluate

from saliency_bench.compute.scoring.evaluate_shell import ExplainerShell


class SaliencyMcs(ExplainerShell, evaluate.Metric):
    """Wrapper for `evaluate`. The metric itself is declared in score.py."""
