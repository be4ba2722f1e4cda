import captum.attr
import numpy as np
import pytest
import torch
from pytorch_grad_cam import GradCAM
from pytorch_grad_cam.utils.model_targets import ClassifierOutputTarget
from refusals import refused
from small_networks import small
from torch.nn import functional as F

from saliency_bench import load_classifier, load_explainer, targets
from saliency_bench.maps import normalise

MEAN, STD = (0.5,) * 3, (0.1,) * 3


def of_captum(peer, labels, **options):
    layer = captum.attr.LayerGradCam(peer.model, peer.model.get_submodule(peer.layer))
    theirs = layer.attribute(peer.inputs, target=torch.tensor(labels), **options)
    return F.interpolate(theirs, size=peer.images.shape[2:], mode="bilinear", align_corners=False)[:, 0]


def test_agrees_with_captum_which_keeps_negatives_of_a_contrast(peer, error_of):
    ours = load_explainer("gradcam")(peer.classifier, peer.images, peer.target)
    assert error_of(ours, of_captum(peer, [0, 3, 1], relu_attributions=True)) <= 1e-4
    ours = load_explainer("gradcam")(peer.classifier, peer.images, targets.contrast([0, 3, 1], [2, 1, 3], 4))
    assert (ours < 0).any()
    assert error_of(ours, of_captum(peer, [0, 3, 1]) - of_captum(peer, [2, 1, 3])) <= 1e-4


def test_agrees_with_pytorch_grad_cam_which_scales_to_1(peer):
    ours = load_explainer("gradcam")(peer.classifier, peer.images, peer.target).numpy()
    with GradCAM(peer.model, [dict(peer.model.named_modules())[peer.layer]]) as cam:
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
def test_a_weighted_contrast_is_the_class_less_its_rivals_by_their_softmax(form):
    """Compare with the formula phi_t - sum_s a_s phi_s of Wang and Wang.

    In their code it is the map of p_t, which differs by the factor p (1 - p).
    """
    model, images = small(7).eval(), torch.rand(2, 3, 16, 16, generator=torch.Generator().manual_seed(4))
    target, positive = WEIGHTED[form]
    classifier = load_classifier(model, mean=MEAN, std=STD, device="cpu", layer="3")
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


def test_a_weighted_contrast_of_a_sure_network_is_not_flat_and_others_are_refused():
    model, images = small(7).eval(), torch.rand(2, 3, 16, 16)
    with torch.no_grad():
        model[-1].bias[0] += 40
    classifier = load_classifier(model, mean=MEAN, std=STD, device="cpu", layer="3")
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
    refused("one other class", explainer, classifier, images, targets.group([0, 1, 2, 3], 4))
    many = load_classifier(model, mean=MEAN, std=STD, device="cpu", layer="3", activation="sigmoid")
    refused("sigmoid", explainer, many, images, target)
