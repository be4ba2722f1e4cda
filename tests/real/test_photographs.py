"""Tests of properties of explainers and metrics on a real network and photographs."""

import numpy as np
import pytest
import torch

import saliency_bench as sb
from saliency_bench import targets
from saliency_bench.compute.maps.randomised import cascade
from saliency_bench.compute.scoring.samples import score_samples


def highest(maps):
    """Return (row, column) of each map's highest pixel."""
    return [np.unravel_index(int(values.argmax()), values.shape) for values in maps]


@pytest.mark.parametrize("name", ["gradcam", "gradcam_plus_plus"])
def test_cam_peak_lies_inside_the_object(name, lite0, photos, predicted):
    maps = sb.load_explainer(name)(lite0, photos.images[:2], predicted[:2])
    for mask, (row, column) in zip(photos.masks, highest(maps), strict=False):
        assert mask[row, column]


@pytest.mark.slow
def test_gradcam_follows_class_in_grid_of_photographs(lite0, photos):
    """Test GridPG (Boehle et al., 2021), the share of positive values in the cell of the class. Chance is a quarter."""
    grid = torch.cat([torch.cat(list(photos.images[i : i + 2]), dim=2) for i in (0, 2)], dim=1)[None]
    shown = [lite0.labels.index(name) for name in ("tiger cat", "espresso", "missile", "tripod")]
    maps = sb.load_explainer("gradcam")(lite0, grid.repeat(4, 1, 1, 1), targets.one_hot(shown, 1000)).clamp(min=0)
    cells = maps.unflatten(2, (2, -1)).unflatten(1, (2, -1)).sum(dim=(2, 4)).flatten(1)  # (class, cell)
    shares = (cells / cells.sum(dim=1, keepdim=True)).diagonal()
    assert shares.min() > 0.25
    assert shares.mean() > 0.5


@pytest.mark.parametrize("name", ["integrated_gradients:steps=3", "rise:masks=4"])
def test_maps_are_identical_in_every_batch(name, lite0, photos, predicted):
    explainer = sb.load_explainer(name)
    together = explainer(lite0, photos.images, predicted, seeds=[1, 2, 3, 4])
    alone = explainer(lite0, photos.images[2:3], predicted[2:3], seeds=[3])
    assert torch.equal(together[2], alone[0])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gradcam", "input_x_gradient"])
def test_random_weights_change_the_maps(name, lite0, photos, predicted):
    *_, (_, randomised) = cascade(lite0, 0)
    explainer = sb.load_explainer(name)
    learned, drawn = (explainer(network, photos.images, predicted).flatten(1) for network in (lite0, randomised))
    pairs = zip(learned.abs(), drawn.abs(), strict=True)
    assert np.mean([abs(float(torch.corrcoef(torch.stack(pair))[0, 1])) for pair in pairs]) < 0.6


@pytest.mark.slow
def test_insertion_of_gradcam_beats_random(lite0, photos, predicted):
    scores = {
        name: score_samples("saliency_insertion:steps=16", photos.images, lite0, name, target=predicted)
        for name in ("gradcam", "random")
    }
    assert (scores["gradcam"] > scores["random"]).all()


@pytest.mark.slow
def test_results_match_captum_pytorch_grad_cam_and_quantus(lite0, photos, predicted):
    captum = pytest.importorskip("captum.attr")
    grad_cam = pytest.importorskip("pytorch_grad_cam")
    quantus = pytest.importorskip("quantus")
    images, labels = photos.images, predicted.argmax(dim=1)
    wanted = captum.IntegratedGradients(lite0).attribute(
        images, lite0.mean.expand_as(images), target=labels, n_steps=20
    )
    close(sb.load_explainer("integrated_gradients", steps=20)(lite0, images, predicted), wanted.sum(dim=1))

    layer = lite0.model.timm_model.bn2
    classes = [grad_cam.utils.model_targets.ClassifierOutputTarget(int(label)) for label in labels]
    with grad_cam.GradCAM(model=lite0, target_layers=[layer]) as cam:
        theirs = torch.from_numpy(cam(input_tensor=images, targets=classes))
    ours = sb.load_explainer("gradcam")(lite0, images, predicted)
    smallest, largest = ours.amin(dim=(1, 2), keepdim=True), ours.amax(dim=(1, 2), keepdim=True)
    # The other package scales the map to [0, 1] and enlarges it with another library.
    assert ((ours - smallest) / (largest - smallest) - theirs).abs().mean() < 0.02

    positive = ours.clamp(min=0).numpy()
    metric = quantus.RelevanceMassAccuracy(disable_warnings=True, return_aggregate=False, abs=False, normalise=False)
    given = {"x_batch": images.numpy(), "y_batch": labels.numpy(), "a_batch": positive[:, None],
             "s_batch": photos.masks.numpy()[:, None]}  # fmt: skip
    mass = metric(model=lite0, **given)
    energy = sb.load_metric("saliency_energy")(maps=positive, masks=photos.masks.numpy())
    np.testing.assert_allclose(energy, mass, atol=1e-5)


def close(ours, theirs):
    """Assert that maps agree, except for the few pixels where rounding turns a ReLU on or off."""
    assert (ours - theirs).abs().sum() < 1e-3 * theirs.abs().sum()
