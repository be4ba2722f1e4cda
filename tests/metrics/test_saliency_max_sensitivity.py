"""Test saliency_max_sensitivity by hand, by loops, against Quantus on the same draws, and for invariances."""

import numpy as np
import pytest
import torch
from refusals import refused
from small_networks import Custom, gradient, loaded
from torch import nn

from saliency_bench.bound_explainer import as_explainer
from saliency_bench.compute.classifiers.loading import load_classifier
from saliency_bench.compute.maps.map_provider import MapProvider
from saliency_bench.metrics.saliency_max_sensitivity.score import saliency_max_sensitivity
from saliency_bench.target_weights import one_hot
from saliency_bench.utils.seeds import seed_of, uniform

H, W, K = 5, 6, 4
MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.25, 0.3)


def small():
    torch.manual_seed(1)
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * H * W, 8), nn.Tanh(), nn.Linear(8, K))


@pytest.fixture
def given_inputs():
    def made(explainer=gradient, count=3, seeds=(11, 12, 13)):
        torch.manual_seed(0)
        classifier = load_classifier(small(), mean=MEAN, std=STD, device="cpu")
        images, target = torch.rand(count, 3, H, W), one_hot([0, 2, 1][:count], K)
        seeds = list(seeds[:count])
        explain = MapProvider(as_explainer(explainer), classifier, seeds)
        return explain(images, target), images, target, classifier, explain, seeds

    return made


def noise_of(seed, draw, radius):
    """Return the noise (3, H, W) in units of the normalised image."""
    return radius * (2 * uniform(seed_of(seed, draw), 3 * H * W).reshape(3, H, W) - 1)


def test_scores_match_hand_computed_example():
    def moves(classifier, images, target):
        """Return maps of 1 with a 2 at the first pixel of a white image or the second pixel of any other image."""
        maps, white = torch.ones(len(images), 4, 4), (images == 1).all(dim=(1, 2, 3))
        maps[white, 0, 0], maps[~white, 0, 1] = 2, 2
        return maps

    classifier = loaded(Custom(lambda net, images: torch.zeros(len(images), 2)))
    images, target = torch.ones(1, 3, 4, 4), one_hot(0, 2)
    explain = MapProvider(as_explainer(moves), classifier, [0])
    inputs = explain(images, target), images, target, classifier, explain, [0]
    assert saliency_max_sensitivity(*inputs) == pytest.approx([np.sqrt(2 / 19)])
    assert saliency_max_sensitivity(*inputs, relative=False) == pytest.approx([np.sqrt(2)])


@pytest.mark.parametrize(
    ("radius", "draws", "relative", "unit"),
    [(0.2, 3, True, None), (0.02, 1, True, "image"), (0.2, 3, False, "image"), (0.2, 3, False, None),
     (0.2, 2, True, "normalised")],
)  # fmt: skip
def test_scores_match_literal_loop(given_inputs, radius, draws, relative, unit):
    """Explain the network without normalisation if the unit is that of the normalised image."""
    maps, images, target, classifier, _, seeds = given_inputs()
    options = {"radius": radius, "draws": draws, "relative": relative, "unit": unit}
    scores = saliency_max_sensitivity(*given_inputs(), **options)
    std = torch.tensor(STD).view(3, 1, 1)
    if unit == "normalised" or (unit is None and not relative):
        images, std, classifier = (images - torch.tensor(MEAN).view(3, 1, 1)) / std, torch.ones(3, 1, 1), small()
        maps = gradient(classifier, images, target).numpy()
    for index, seed in enumerate(seeds):
        highest = 0.0
        for draw in range(draws):
            changed = images[index : index + 1] + torch.from_numpy(noise_of(seed, draw, radius)).float() * std
            other = gradient(classifier, changed, target[index : index + 1])[0].double().numpy()
            difference = sum((a - b) ** 2 for a, b in zip(other.ravel(), maps[index].ravel(), strict=True)) ** 0.5
            norm = sum(float(b) ** 2 for b in maps[index].ravel()) ** 0.5
            highest = max(highest, difference / norm if relative else difference)
        assert scores[index] == pytest.approx(highest, rel=1e-4)


def test_noise_of_every_draw_is_uniform_within_radius(given_inputs):
    seen = []

    def watching(classifier, images, target):
        seen.append(((images - classifier.mean) / classifier.std).detach())
        return gradient(classifier, images, target)

    inputs = given_inputs(watching)
    before = inputs[3].passes
    saliency_max_sensitivity(*inputs, radius=0.2, draws=20)
    assert inputs[3].passes - before == 3 * 20
    assert [len(images) for images in seen] == [3] * 21  # a map per draw, in whole batches
    noise = torch.stack(seen[1:]) - seen[0]
    assert noise.abs().max() <= 0.2 + 1e-5
    assert noise.abs().max() > 0.199
    assert noise.mean().abs() < 0.01
    assert noise.var().item() == pytest.approx(0.2**2 / 3, rel=0.05)
    assert len(torch.unique(noise)) > 0.9 * noise.numel()  # different for each draw, sample, channel and pixel


@pytest.mark.slow
def test_scores_match_quantus_on_same_draws(given_inputs):
    quantus = pytest.importorskip("quantus")
    maps, images, target, classifier, explain, seeds = given_inputs()
    normalised = ((images - classifier.mean) / classifier.std).numpy()
    draws = iter(range(4))

    def perturb(arr, indices=None, **kwargs):
        """Return the next draw; Quantus calls this once per draw for the whole batch."""
        draw = next(draws)
        return arr + np.stack([noise_of(seed, draw, 0.2).ravel() for seed in seeds]).reshape(arr.shape)

    def explained(model, inputs, targets, **kwargs):
        prepared = torch.as_tensor(inputs, dtype=torch.float32) * classifier.std + classifier.mean
        return gradient(classifier, prepared, one_hot(targets, K))[:, None].numpy()

    metric = quantus.MaxSensitivity(
        nr_samples=4, abs=False, normalise=False, perturb_func=perturb, perturb_func_kwargs={}, disable_warnings=True,
        norm_numerator=quantus.norm_func.fro_norm, norm_denominator=quantus.norm_func.fro_norm,
        similarity_func=quantus.similarity_func.difference, return_nan_when_prediction_changes=False,
    )  # fmt: skip
    theirs = metric(model=classifier.model, x_batch=normalised, y_batch=np.array([0, 2, 1]),
                    a_batch=maps[:, None], explain_func=explained, device="cpu")  # fmt: skip
    ours = saliency_max_sensitivity(maps, images, target, classifier, explain, seeds, draws=4)
    assert np.ravel(theirs) == pytest.approx(ours, rel=1e-3)


def test_constant_map_has_no_score(given_inputs):
    def flat(classifier, images, target):
        maps = gradient(classifier, images, target)
        maps[target[:, 0] == 1], maps[target[:, 2] == 1] = 0, 3
        return maps

    scores = saliency_max_sensitivity(*given_inputs(flat))
    assert np.isnan(scores).tolist() == [True, True, False]
    assert scores[2] == pytest.approx(saliency_max_sensitivity(*given_inputs())[2], rel=1e-5)


def test_classifier_without_std_is_rejected(given_inputs):
    maps, images, target, _, explain, seeds = given_inputs()
    refused("load_classifier", saliency_max_sensitivity, maps, images, target, small(), explain, seeds)
