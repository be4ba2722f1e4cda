import captum.attr
import numpy as np
import pytest
import torch
from torch import nn

from saliency_bench import load_classifier, load_explainer, registry, targets
from saliency_bench.utils.seeds import random_bits, seed_of, uniform

gradient_shap = registry.load("explainers", "gradient_shap")

# In a deep network, some ReLU input is so close to 0 that the last bits of another batch size change its sign.
KINKS = pytest.mark.parametrize("peer", ["small", "branched"], indirect=True)


def drawn(seed, samples, baselines):
    """Return (path points, numbers of baselines) of one sample."""
    picks = random_bits(seed_of(seed, "gradient_shap", "baseline"), samples) % np.uint64(baselines)
    return uniform(seed_of(seed, "gradient_shap", "point"), samples), picks.astype(int)


@KINKS
@pytest.mark.parametrize("baseline", ["noise", "black"])
def test_agrees_with_a_slow_second_writing_of_its_equation(peer, baseline, error_of, stepped_up):
    target, seeds, samples = targets.contrast([0, 3, 1], [1, 2, 2], 4), [5, 6, 7], 7
    explainer = load_explainer("gradient_shap", samples=samples, baselines=3, seed=9, baseline=baseline)
    ours = explainer.made(peer.classifier, peer.images, target, seeds=seeds)
    bank = gradient_shap.bank(peer.classifier, 3, 9, peer.images)
    halves = torch.zeros(2, *ours.maps.shape)
    for index, seed in enumerate(seeds):
        for number, (place, pick) in enumerate(zip(*drawn(seed, samples, 3), strict=True)):
            is_bank, end = baseline == "noise", peer.images[index]
            start = bank[pick] if is_bank else torch.zeros_like(end)
            point = (start + place * (end - start)).requires_grad_()
            (peer.classifier(point[None])[0] * target[index]).sum().backward()
            # The halves of a bank have different baselines.
            halves[(pick if is_bank else number) % 2, index] += ((end - start) * point.grad).sum(dim=0) / samples
        assert ours.reliability[index] == pytest.approx(stepped_up(*halves[:, index]), abs=1e-3)
    assert error_of(ours.maps, halves.sum(dim=0)) <= 1e-4
    assert ours.draws == [samples] * len(ours.maps)


@KINKS
@pytest.mark.parametrize("baseline", ["noise", "zero", "black", "white"])
def test_agrees_with_captum_on_one_baseline_and_its_five_draws(baseline, peer, error_of, monkeypatch):
    """P3's code calls captum like this (zeros after normalisation). With our points, captum's maps must agree."""
    explainer = load_explainer("gradient_shap", baseline=baseline, baselines=1, samples=5)
    ours = explainer(peer.classifier, peer.images, peer.target, seeds=[5, 6, 7])
    points = np.concatenate([drawn(seed, 5, 1)[0] for seed in (5, 6, 7)])
    monkeypatch.setattr(np.random, "uniform", lambda low, high, size: points)
    mean, shape = peer.classifier.mean, (1, *peer.images.shape[1:])
    starts = {"noise": gradient_shap.bank(peer.classifier, 1, 0, peer.images), "zero": mean.expand(shape),
              "black": torch.zeros(shape), "white": torch.ones(shape)}  # fmt: skip
    start = (starts[baseline] - mean) / peer.classifier.std
    theirs = captum.attr.GradientShap(peer.model).attribute(peer.inputs, start, n_samples=5, target=peer.labels)
    assert error_of(ours, theirs.sum(dim=1)) <= 1e-4


def test_the_bank_is_normal_noise_after_normalisation_and_the_runs():
    classifier = load_classifier(
        nn.Sequential(nn.Flatten(), nn.Linear(3, 2)), mean=(0.5,) * 3, std=(0.2,) * 3, device="cpu"
    )
    images = torch.rand(1, 3, 40, 50)
    noise = (gradient_shap.bank(classifier, 5, 0, images) - 0.5) / 0.2
    assert noise.shape == (5, 3, 40, 50)
    assert abs(noise.mean()) < 0.02
    assert noise.std() == pytest.approx(1, abs=0.02)
    assert not torch.equal(noise, (gradient_shap.bank(classifier, 5, 1, images) - 0.5) / 0.2)
    assert dict(load_explainer("gradient_shap").seeded(3).options)["seed"] == 3
