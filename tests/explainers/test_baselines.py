import pytest
import torch
from torch import nn

from saliency_bench import load_classifier, load_explainer, targets


@pytest.fixture
def classifier():
    return load_classifier(nn.Sequential(nn.Flatten(), nn.Linear(3 * 64 * 64, 3)), device="cpu", mean=0, std=1)


def test_random_is_uniform_and_redrawn_for_every_seed_class_and_picture(classifier):
    images, target = torch.rand(2, 3, 64, 64), targets.one_hot([0, 0], 3)
    explainer = load_explainer("random")
    maps = explainer(classifier, images, target)
    assert maps.mean() == pytest.approx(0.5, abs=0.02)
    assert maps.std() == pytest.approx(12**-0.5, abs=0.02)
    assert len(maps[0].unique()) > 4000
    others = [
        explainer(classifier, images, target, seeds=[5, 6]),
        explainer(classifier, images, targets.one_hot([1, 1], 3)),
        explainer(classifier, (images + 0.01).clamp(0, 1), target),
    ]
    for other in others:
        correlation = torch.corrcoef(torch.stack([maps[0].flatten(), other[0].flatten()]))[0, 1]
        assert abs(correlation) < 0.06


def test_centre_is_the_gaussian_of_its_formula(classifier):
    (values,) = load_explainer("centre", sigma=0.5)(classifier, torch.rand(1, 3, 5, 9), targets.one_hot([0], 3))
    assert values[2, 4] == 1
    assert values[0, 4] == pytest.approx(float(torch.exp(torch.tensor(-((2 / 2.5) ** 2) / 2))))
    assert values[2, 0] == pytest.approx(float(torch.exp(torch.tensor(-((4 / 4.5) ** 2) / 2))))
    assert torch.equal(values, values.flip(0))
    assert torch.equal(values, values.flip(1))
