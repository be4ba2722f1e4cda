"""Module for `evaluate`; the metric is declared in score.py.

Example:
    >>> import evaluate
    >>> import torch
    >>> import saliency_bench as sb
    >>> class Linear(torch.nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.linear = torch.nn.Linear(48, 2)
    ...         torch.nn.init.constant_(self.linear.weight, 1.0)
    ...
    ...     def forward(self, images):
    ...         return self.linear(images.flatten(1))
    ...
    >>> def explainer(classifier, images, target):
    ...     # If the weights are those above, mark the top row, else the top two rows.
    ...     maps = torch.zeros(len(images), 4, 4)
    ...     maps[:, : 1 if (classifier.model.linear.weight == 1).all() else 2] = 1
    ...     return maps
    ...
    >>> randomisation = evaluate.load("saliency_randomisation")
    >>> classifier = sb.load_classifier(Linear(), mean=0, std=1)  # it expects images in [0, 1]
    >>> result = randomisation.compute(
    ...     images=torch.rand(1, 3, 4, 4), classifier=classifier, explainer=explainer, form="spearman"
    ... )
    >>> print(round(result["saliency_randomisation"], 4))  # 1 / sqrt(3)
    0.5774
"""

import evaluate

from saliency_bench.compute.scoring.evaluate_shell import ExplainerShell


class SaliencyRandomisation(ExplainerShell, evaluate.Metric):
    """Wrapper for `evaluate`. The metric itself is declared in score.py."""
