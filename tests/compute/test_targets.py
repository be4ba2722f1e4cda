import pytest
import torch
from refusals import refused

from saliency_bench import targets


@pytest.mark.parametrize(("target", "expected"), [
    (targets.one_hot([2, 0], 3), [[0, 0, 1], [1, 0, 0]]),
    (targets.one_hot(1, 3), [[0, 1, 0]]),
    (targets.one_hot(torch.tensor([1, 2]), 3), [[0, 1, 0], [0, 0, 1]]),
    (targets.contrast([0, 1], [1, 1], 3), [[1, -1, 0], [0, 0, 0]]),
    (targets.group([0, 2], 4), [[1, 0, 1, 0]]),
    (targets.group(range(2), 3), [[1, 1, 0]]),
    (targets.class_vs_group(0, [0, 1, 2], 4), [[1, -1, -1, 0]]),
    (targets.class_vs_group(3, [0, 1], 4), [[-1, -1, 0, 1]]),
    (targets.class_vs_group(1, [1], 3), [[0, 1, 0]]),  # a class against a group of only itself equals the class
    (targets.group_vs_group([0, 1], [1, 3], 4), [[1, 0, 0, -1]]),
    # "mean" divides each side by its size
    (targets.group([0, 2], 4, reduction="mean"), [[0.5, 0, 0.5, 0]]),
    (targets.class_vs_group(0, [0, 1, 2], 4, reduction="mean"), [[1, -0.5, -0.5, 0]]),
    (targets.group_vs_group([0], [1, 2, 3, 4], 5, "mean"), [[1, -0.25, -0.25, -0.25, -0.25]]),
])  # fmt: skip
def test_builders_by_hand(target, expected):
    assert (target.tolist(), target.dtype) == (expected, torch.float32)


def test_score_on_logits_and_on_probabilities():
    logits, shifted = torch.tensor([[1.0, 2.0, 4.0]]), torch.tensor([[11.0, 12.0, 14.0]])
    target, p = targets.contrast([2], [0], 3), logits[0].exp()
    assert targets.score(logits, target).item() == 3
    assert targets.score(logits, target, "probability").item() == pytest.approx(((p[2] - p[0]) / p.sum()).item())
    by_mean, by_sum = targets.class_vs_group(0, [1, 2], 3, "mean"), targets.class_vs_group(0, [1, 2], 3)
    assert targets.score(logits, by_mean) == targets.score(shifted, by_mean)  # "mean" cancels a common shift
    assert targets.score(logits, by_sum) != targets.score(shifted, by_sum)


@pytest.mark.parametrize(("call", "words"), [
    (lambda: targets.one_hot([3], 3), "whole numbers from 0 to 2"),
    (lambda: targets.one_hot([-1], 3), "whole numbers"),
    (lambda: targets.one_hot([0.5], 3), "whole numbers"),
    (lambda: targets.group([], 3), "at least one class"),
    (lambda: targets.group([0], 3, "median"), "neither 'sum' nor 'mean'"),
    (lambda: targets.score(torch.ones(1, 2), torch.ones(1, 2), "odds"), "on='odds' is unknown; use 'logit'"),
    (lambda: targets.score(torch.ones(4, 3), torch.ones(4, 1)), "1 classes, but the classifier has 3"),
    (lambda: targets.expand(torch.ones(2, 3), torch.zeros(5, 3, 4, 4)), "B = 5"),
    (lambda: targets.expand(torch.ones(3), torch.zeros(3, 3, 4, 4)), "shape"),
    (lambda: targets.expand(torch.tensor([[1.0, float("nan")]]), torch.zeros(1, 3, 4, 4)), "finite"),
])  # fmt: skip
def test_bad_targets_are_one_line(call, words):
    refused(words, call)
