import pytest
import torch

from saliency_bench import targets
from saliency_bench.errors import UserError


def test_builders_by_hand():
    assert targets.one_hot([2, 0], 3).tolist() == [[0, 0, 1], [1, 0, 0]]
    assert targets.one_hot(1, 3).tolist() == [[0, 1, 0]]
    assert targets.contrast([0, 1], [1, 1], 3).tolist() == [[1, -1, 0], [0, 0, 0]]
    assert targets.group([0, 2], 4).tolist() == [[1, 0, 1, 0]]
    assert targets.class_vs_group(0, [0, 1, 2], 4).tolist() == [[1, -1, -1, 0]]
    assert targets.class_vs_group(3, [0, 1], 4).tolist() == [[-1, -1, 0, 1]]
    assert targets.group_vs_group([0, 1], [1, 3], 4).tolist() == [[1, 0, 0, -1]]


def test_mean_divides_each_side_by_its_size():
    assert targets.group([0, 2], 4, reduction="mean").tolist() == [[0.5, 0, 0.5, 0]]
    assert targets.class_vs_group(0, [0, 1, 2], 4, reduction="mean").tolist() == [[1, -0.5, -0.5, 0]]
    assert targets.group_vs_group([0], [1, 2, 3, 4], 5, "mean").tolist() == [[1, -0.25, -0.25, -0.25, -0.25]]


def test_a_class_against_itself_alone_is_the_class():
    assert targets.class_vs_group(1, [1], 3).tolist() == [[0, 1, 0]]


def test_tensors_and_arrays_are_labels_too():
    assert targets.one_hot(torch.tensor([1, 2]), 3).shape == (2, 3)
    assert targets.group(range(2), 3).dtype == torch.float32


def test_score_on_logits_and_on_probabilities():
    logits = torch.tensor([[1.0, 2.0, 4.0]])
    target = targets.contrast([2], [0], 3)
    assert targets.score(logits, target).item() == 3
    p = torch.tensor([1.0, 2.0, 4.0]).exp()
    assert targets.score(logits, target, "probability").item() == pytest.approx(((p[2] - p[0]) / p.sum()).item())


def test_mean_contrast_does_not_see_a_common_shift_but_sum_does():
    logits, shifted = torch.tensor([[1.0, 2.0, 4.0]]), torch.tensor([[11.0, 12.0, 14.0]])
    by_mean, by_sum = targets.class_vs_group(0, [1, 2], 3, "mean"), targets.class_vs_group(0, [1, 2], 3)
    assert targets.score(logits, by_mean) == targets.score(shifted, by_mean)
    assert targets.score(logits, by_sum) != targets.score(shifted, by_sum)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: targets.one_hot([3], 3), "whole numbers from 0 to 2"),
        (lambda: targets.one_hot([-1], 3), "whole numbers"),
        (lambda: targets.one_hot([0.5], 3), "whole numbers"),
        (lambda: targets.group([], 3), "at least one class"),
        (lambda: targets.group([0], 3, "median"), "neither 'sum' nor 'mean'"),
        (lambda: targets.score(torch.ones(1, 2), torch.ones(1, 2), "odds"), "neither 'logit'"),
        (lambda: targets.score(torch.ones(4, 3), torch.ones(4, 1)), "1 classes, but the classifier has 3"),
        (lambda: targets.expand(torch.ones(2, 3), torch.zeros(5, 3, 4, 4)), "B = 5"),
        (lambda: targets.expand(torch.ones(3), torch.zeros(3, 3, 4, 4)), "shape"),
        (lambda: targets.expand(torch.tensor([[1.0, float("nan")]]), torch.zeros(1, 3, 4, 4)), "finite"),
    ],
)
def test_bad_targets_are_one_line(call, words):
    with pytest.raises(UserError, match=words) as caught:
        call()
    assert "\n" not in str(caught.value)
