"""What a map is to explain: weights over the logits, label maps, groups of classes, target rules.

Every builder returns float32. `one_hot` and `contrast` give one row per sample, group builders (1, K), which stands for
every sample.
"""

from saliency_bench.target import expand, no_probabilities, one_hot, score
from saliency_bench.targets.contrasts import class_vs_group, contrast, group, group_vs_group

__all__ = [
    "class_vs_group",
    "contrast",
    "expand",
    "group",
    "group_vs_group",
    "no_probabilities",
    "one_hot",
    "score",
]
