"""Compare class activation maps with captum, pytorch-grad-cam and slow second implementations."""

import captum.attr
import cv2
import numpy as np
import pytest
import torch
from enlarging import rounding
from pytorch_grad_cam import GradCAM, GradCAMPlusPlus, ScoreCAM
from pytorch_grad_cam.utils.model_targets import ClassifierOutputTarget
from refusals import refused
from small_networks import small
from torch import nn
from torch.nn import functional as F

from saliency_bench import load_classifier, load_explainer, registry, targets
from saliency_bench.data import geometry
from saliency_bench.maps import normalise


def of_captum(peer, labels, **options):
    layer = captum.attr.LayerGradCam(peer.model, peer.model.get_submodule(peer.layer))
    theirs = layer.attribute(peer.inputs, target=torch.tensor(labels), **options)
    return F.interpolate(theirs, size=peer.images.shape[2:], mode="bilinear", align_corners=False)[:, 0]


def test_gradcam_matches_captum(peer, error_of):
    ours = load_explainer("gradcam")(peer.classifier, peer.images, peer.target)
    assert error_of(ours, of_captum(peer, [0, 3, 1], relu_attributions=True)) <= 1e-4
    ours = load_explainer("gradcam")(peer.classifier, peer.images, targets.contrast([0, 3, 1], [2, 1, 3], 4))
    assert (ours < 0).any()
    assert error_of(ours, of_captum(peer, [0, 3, 1]) - of_captum(peer, [2, 1, 3])) <= 1e-4


@pytest.mark.slow
@pytest.mark.parametrize(("name", "peers"), [("gradcam", GradCAM), ("gradcam_plus_plus", GradCAMPlusPlus)])
def test_gradcams_match_pytorch_grad_cam(name, peers, peer):
    ours = load_explainer(name)(peer.classifier, peer.images, peer.target).numpy()
    with peers(peer.model, [peer.model.get_submodule(peer.layer)]) as cam:
        theirs = cam(peer.inputs, [ClassifierOutputTarget(label) for label in peer.labels.tolist()])
    np.testing.assert_allclose(normalise(ours), theirs, atol=1e-4)


def head_maps(model, images):
    """Return a literal Grad-CAM (B, K, h, w) of each class, channel by channel. Negative values are kept."""
    features = model[:4]((images - 0.5) / 0.1).detach().requires_grad_()
    logits, maps = model[4:](features), []
    for k in range(logits.shape[1]):
        (gradient,) = torch.autograd.grad(logits[:, k].sum(), features, retain_graph=True)
        channels = range(features.shape[1])
        maps.append(sum(gradient[:, c].mean(dim=(1, 2))[:, None, None] * features[:, c] for c in channels))
    return torch.stack(maps, dim=1).detach().double(), logits.detach().double()


WEIGHTED = {
    "class": (targets.one_hot([0, 3], 4), [{0}, {3}]),
    "contrast": (targets.contrast([0, 3], [2, 1], 4), [{0}, {3}]),
    "group": (targets.group([0, 2], 4), [{0, 2}] * 2),
    "group against group": (targets.group_vs_group([1, 2], [0], 4), [{1, 2}] * 2),
}


@pytest.mark.parametrize("form", WEIGHTED)
def test_weighted_contrast_matches_published_formula(form):
    """Wang and Wang: phi_t - sum_s a_s phi_s. Their code computes the map of p_t, which differs by p (1 - p)."""
    model, images = small(7).eval(), torch.rand(2, 3, 16, 16, generator=torch.Generator().manual_seed(4))
    target, positive = WEIGHTED[form]
    classifier = load_classifier(model, mean=(0.5,) * 3, std=(0.1,) * 3, device="cpu", layer="3")
    ours = load_explainer("gradcam", on="weighted")(classifier, images, target)
    maps, logits = head_maps(model, images)
    for index, chosen in enumerate(positive):
        expected = torch.zeros(8, 8, dtype=torch.float64)
        for members, sign in ((chosen, 1), (set(range(4)) - chosen, -1)):
            total = sum(float(torch.exp(logits[index, k])) for k in members)
            for k in members:
                expected += sign * float(torch.exp(logits[index, k])) / total * maps[index, k]
        p = sum(float(logits[index].softmax(0)[k]) for k in chosen)
        expected = F.interpolate((p * (1 - p) * expected)[None, None], size=(16, 16), mode="bilinear")[0, 0]
        torch.testing.assert_close(ours[index].double(), expected, rtol=1e-3, atol=1e-4 * float(expected.abs().max()))
        assert (ours[index] < 0).any()


def test_weighted_contrast_of_confident_network_is_not_flat():
    model, images = small(7).eval(), torch.rand(2, 3, 16, 16)
    with torch.no_grad():
        model[-1].bias[0] += 40
    classifier = load_classifier(model, mean=(0.5,) * 3, std=(0.1,) * 3, device="cpu", layer="3")
    assert (classifier(images).softmax(1)[:, 0] == 1).all()
    explainer, target = load_explainer("gradcam", on="weighted"), targets.one_hot([0, 0], 4)
    assert load_explainer("gradcam", on="probability")(classifier, images, target).abs().max() < 1e-20
    ours = explainer(classifier, images, target)
    assert all(len(each.unique()) > 32 for each in ours)
    maps, logits = head_maps(model, images)
    rivals = logits[:, 1:].softmax(1)
    expected = maps[:, 0] - (rivals[:, :, None, None] * maps[:, 1:]).sum(1)
    expected = F.interpolate(expected[:, None], size=(16, 16), mode="bilinear")[:, 0]
    correlation = [float(torch.corrcoef(torch.stack([a.double().ravel(), b.ravel()]))[0, 1])
                   for a, b in zip(ours, expected, strict=True)]  # fmt: skip
    assert min(correlation) > 0.9999
    refused("positive weight", explainer, classifier, images, -target)
    refused("at least one does not", explainer, classifier, images, targets.group([0, 1, 2, 3], 4))
    many = load_classifier(model, mean=(0.5,) * 3, std=(0.1,) * 3, device="cpu", layer="3", activation="sigmoid")
    refused("sigmoid", explainer, many, images, target)


@pytest.mark.parametrize("peer", ["small", "branched"], indirect=True)
@pytest.mark.parametrize("contrast", [False, True])
def test_gradcam_plus_plus_matches_literal_loop(peer, contrast):
    target = targets.contrast([0, 3, 1], [1, 2, 2], 4) if contrast else peer.target
    ours = load_explainer("gradcam_plus_plus")(peer.classifier, peer.images, target)
    kept = []

    def keep(module, inputs, output):
        output.retain_grad()
        kept.append(output)

    handle = peer.model.get_submodule(peer.layer).register_forward_hook(keep)
    (peer.model(peer.inputs) * target).sum().backward()
    handle.remove()
    for index in range(3):
        a, g = kept[0][index].detach().double(), kept[0].grad[index].double()
        cam = torch.zeros(a.shape[1:], dtype=torch.float64)
        for channel in range(len(a)):
            weight, total = 0.0, float(a[channel].sum())
            for slope in g[channel].flatten().tolist():
                alpha = slope**2 / (2 * slope**2 + total * slope**3 + 1e-6) if slope != 0 else 0
                weight += max(slope, 0) * alpha
            cam += weight * a[channel]
        cam = cam if contrast else cam.relu()
        expected = F.interpolate(cam[None, None], size=peer.images.shape[2:], mode="bilinear", align_corners=False)[
            0, 0
        ]
        assert (ours[index] - expected).abs().max() <= 1e-4 * expected.abs().max()


MEAN, STD = (0.4, 0.5, 0.6), (0.1, 0.2, 0.3)


@pytest.mark.slow
def test_scorecam_matches_pytorch_grad_cam():
    """Apply what pytorch-grad-cam does to our small map: it applies min-max twice and enlarges with OpenCV."""
    model, images, labels = small().eval(), torch.rand(2, 3, 20, 24), [0, 3]
    classifier = load_classifier(model, mean=MEAN, std=STD, layer="3", device="cpu")
    with ScoreCAM(model, [model[3]]) as cam:
        theirs = cam((images - classifier.mean) / classifier.std, [ClassifierOutputTarget(label) for label in labels])
    small_maps = []
    with pytest.MonkeyPatch.context() as patch:
        module = registry.load("explainers", "scorecam")
        patch.setattr(module, "enlarge", lambda cam, images: small_maps.append(cam) or geometry.enlarge(cam, images))
        load_explainer("scorecam", align_corners=True)(classifier, images, targets.one_hot(labels, 4))
    for ours, expected in zip(small_maps[0].numpy(), theirs, strict=True):
        ours = cv2.resize((ours - ours.min()) / (ours.max() - ours.min()), (24, 20))
        assert np.abs((ours - ours.min()) / (ours.max() - ours.min()) - expected).max() <= 1e-4


@pytest.mark.parametrize("on", ["logit", "probability"])
@pytest.mark.parametrize("align_corners", [False, True])
def test_scorecam_matches_literal_loop(on, align_corners):
    model = small()
    images, target = torch.rand(2, 3, 10, 14), targets.contrast([0, 2], [1, 3], 4)
    classifier = load_classifier(model, mean=MEAN, std=STD, device="cpu")
    ours = load_explainer("scorecam", layer="2", on=on, align_corners=align_corners, batch_size=5)(
        classifier, images, target
    )
    grey = torch.tensor(MEAN).view(3, 1, 1)

    def enlarged(values, align_corners):
        return F.interpolate(values[None, None], size=(10, 14), mode="bilinear", align_corners=align_corners)[0, 0]

    for index, image in enumerate(images):
        with torch.no_grad():
            maps = model[:3]((image[None] - classifier.mean) / classifier.std)[0]  # signed values before the ReLU
            scores = []
            for channel in maps:
                mask = enlarged(channel, align_corners)
                mask = (mask - mask.min()) / (mask.max() - mask.min())
                logits = classifier((grey + mask * (image - grey))[None])[0].double()
                outputs = logits if on == "logit" else logits.softmax(0)
                scores.append(float((outputs * target[index]).sum()))
        weights = np.exp(scores) / np.exp(scores).sum()
        total = sum(weight * channel.double() for weight, channel in zip(weights, maps, strict=True))
        allowed = 1e-6 + rounding(total[None])
        np.testing.assert_allclose(ours[index].numpy(), enlarged(total, False), rtol=1e-4, atol=allowed)


def test_scorecam_of_equal_classes_is_mean_of_channels():
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.Flatten(), nn.Linear(4 * 36, 2))
    model[0].weight.data[0] = 0
    classifier = load_classifier(model, layer="0", device="cpu", mean=0, std=1)
    images = torch.rand(2, 3, 6, 6)
    maps = load_explainer("scorecam")(classifier, images, targets.contrast([1], [1], 2))
    with torch.no_grad():
        torch.testing.assert_close(maps, model[0](images).mean(dim=1).relu())
