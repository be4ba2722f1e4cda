"""Define targets of explanations: weights over the logits, label maps, groups of classes, and target rules.

All builders return float32. `one_hot` and `contrast` return one row per sample. Builders for groups return a single row
(1, K) for all samples.
"""

from saliency_bench.compute.targets.contrasts import class_vs_group, contrast, group, group_vs_group
from saliency_bench.target_weights import activation_of, expand, no_probabilities, one_hot, probabilities, score

__all__ = [
    "activation_of",
    "class_vs_group",
    "contrast",
    "expand",
    "group",
    "group_vs_group",
    "no_probabilities",
    "one_hot",
    "probabilities",
    "score",
]
