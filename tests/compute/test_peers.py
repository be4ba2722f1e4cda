"""Test explainers from other packages: maps are bit-identical to the maps of the package for its own network."""

from functools import partial
from types import SimpleNamespace

import captum.attr
import numpy as np
import pytest
import quantus
import torch
from pytorch_grad_cam import EigenCAM, GradCAM, GradCAMPlusPlus
from pytorch_grad_cam.utils.model_targets import ClassifierOutputTarget
from refusals import refused
from torch import nn

import saliency_bench as sb
from saliency_bench import peers
from saliency_bench.bound_explainer import as_explainer

Saliency = captum.attr.Saliency
MEAN, STD = [0.4, 0.5, 0.6], [0.2, 0.3, 0.25]
CLASSES = torch.tensor([1, 3])
ONE_HOT = torch.eye(5)[CLASSES]
CAPTUM = {
    "Saliency": lambda net: (Saliency(net), {"abs": False}),
    "InputXGradient": lambda net: (captum.attr.InputXGradient(net), {}),
    "IntegratedGradients": lambda net: (captum.attr.IntegratedGradients(net), {"n_steps": 5}),
    "GuidedBackprop": lambda net: (captum.attr.GuidedBackprop(net), {}),
    "DeepLift": lambda net: (captum.attr.DeepLift(net), {}),
    "Occlusion": lambda net: (captum.attr.Occlusion(net), {"sliding_window_shapes": (3, 4, 4), "strides": (3, 4, 4)}),
    "LayerGradCam": lambda net: (captum.attr.LayerGradCam(net, net[2]), {"relu_attributions": True}),
    "GuidedGradCam": lambda net: (captum.attr.GuidedGradCam(net, net[2]), {}),
    "NoiseTunnel": lambda net: (captum.attr.NoiseTunnel(Saliency(net)), {"nt_samples": 2, "stdevs": 0.0}),
}


def made(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Conv2d(3, 6, 3, 2, 1), nn.ReLU(), nn.Conv2d(6, 8, 3, 2, 1), nn.ReLU(),
                         nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 5)).eval()  # fmt: skip


@pytest.fixture(scope="module")
def network():
    return made()


@pytest.fixture(scope="module")
def classifier(network):
    return sb.load_classifier(network, mean=MEAN, std=STD, device="cpu")


@pytest.fixture(scope="module")
def images():
    return torch.rand(2, 3, 16, 16, generator=torch.Generator().manual_seed(1))


def normalised(images):
    return (images - torch.tensor(MEAN).view(1, 3, 1, 1)) / torch.tensor(STD).view(1, 3, 1, 1)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CAPTUM)
def test_captum_explainers_match_direct_attributions(name, network, classifier, images):
    attribution, options = CAPTUM[name](network)
    direct = attribution.attribute(normalised(images).requires_grad_(), target=CLASSES, **options).detach().sum(dim=1)
    attribution, options = CAPTUM[name](network)
    explainer = peers.captum(attribution, **options)
    assert explainer.name == f"captum.{name}"
    maps = explainer(classifier, images, ONE_HOT)
    assert maps.shape == (2, 16, 16)
    if direct.shape == maps.shape:
        assert torch.equal(maps, direct)
    else:
        assert torch.equal(maps, sb.load_explainer("gradcam", layer="2")(classifier, images, ONE_HOT))
    again, options = CAPTUM[name](network)
    assert peers.captum(again, **options).version == explainer.version
    assert attribution.forward_func is network


def test_contrast_target_subtracts_captum_maps(network, classifier, images):
    """Compare with a difference of captum's maps. For linear maps, "A, not B" is the map for A minus the map for B."""
    explainer = peers.captum(Saliency(network), abs=False)
    first, second = (explainer(classifier, images, row.expand(2, 5)) for row in torch.eye(5)[[2, 4]])
    contrast = explainer(classifier, images, (torch.eye(5)[2] - torch.eye(5)[4]).expand(2, 5))
    assert torch.allclose(contrast, first - second, atol=1e-6)


def test_object_with_classifier_gets_unnormalised_images(network, classifier, images):
    maps = peers.captum(Saliency(classifier), abs=False)(classifier, images, ONE_HOT)
    given = images.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(classifier(given).gather(1, CLASSES[:, None]).sum(), given)
    assert torch.allclose(maps, gradient.sum(dim=1), atol=1e-7)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", [GradCAM, GradCAMPlusPlus, EigenCAM])
def test_grad_cam_explainers_match_pytorch_grad_cam(kind, network, classifier, images):
    cam = kind(model=network, target_layers=[network[2]])
    direct = cam(input_tensor=normalised(images), targets=[ClassifierOutputTarget(int(index)) for index in CLASSES])
    explainer = peers.grad_cam(cam)
    assert explainer.name == f"pytorch_grad_cam.{kind.__name__}"
    assert np.array_equal(explainer(classifier, images, ONE_HOT).numpy(), direct)
    assert cam.model is cam.activations_and_grads.model is network
    cam.activations_and_grads.release()


@pytest.mark.filterwarnings("ignore")
def test_quantus_explainer_matches_quantus(classifier, images):
    explainer = peers.quantus(quantus.explain, method="Saliency")
    maps = explainer(classifier, images, ONE_HOT)
    direct = quantus.explain(classifier, images.numpy(), CLASSES.numpy(), method="Saliency")
    assert np.array_equal(maps.numpy(), direct.sum(axis=1))
    refused("Quantus functions explain a single class", explainer, classifier, images, ONE_HOT - torch.eye(5)[[0, 0]])


def test_zennit_explainer_matches_zennit(network, classifier, images):
    attribution = pytest.importorskip("zennit.attribution")
    from zennit.composites import EpsilonPlusFlat

    attributor = attribution.Gradient(network, EpsilonPlusFlat())
    with attributor:
        _, direct = attributor(normalised(images).requires_grad_(), ONE_HOT)
    explainer = peers.zennit(attributor)
    assert torch.equal(explainer(classifier, images, ONE_HOT), direct.sum(dim=1))
    assert peers.zennit(attribution.Gradient(network, EpsilonPlusFlat())).version == explainer.version
    assert peers.zennit(attribution.Gradient(network, EpsilonPlusFlat(epsilon=1e-3))).version != explainer.version


def test_version_depends_on_settings_but_not_on_network(network):
    def version(attribution, **options):
        return peers.captum(attribution, **options).version

    versions = [
        version(captum.attr.LayerGradCam(network, network[2])),
        version(captum.attr.LayerGradCam(network, network[0])),
        version(captum.attr.LayerGradCam(network, network[2]), relu_attributions=True),
        version(Saliency(network)),
        version(captum.attr.NoiseTunnel(Saliency(network))),
        version(captum.attr.NoiseTunnel(captum.attr.InputXGradient(network))),
        version(captum.attr.FeatureAblation(network), feature_mask=torch.zeros(1, 1, 64, 64)),
        version(captum.attr.FeatureAblation(network), feature_mask=torch.eye(64)[None, None]),
    ]
    assert len(set(versions)) == len(versions)
    other = made(seed=1)
    assert version(captum.attr.LayerGradCam(other, other[2])) == versions[0]


CONVERT = r"convert it to an explainer with saliency_bench\.peers\."


@pytest.mark.parametrize(("words", "call"), [
    ("ReLU is not a captum attribution object; pass an object", lambda net: peers.captum(nn.ReLU())),
    ("Saliency is not a captum attribution object; pass an object", lambda net: peers.captum(Saliency)),
    ("ReLU is not a CAM object from pytorch_grad_cam: it has no activations", lambda net: peers.grad_cam(nn.ReLU())),
    ("GradCAM is not a CAM object from pytorch_grad_cam: it has no activations", lambda net: peers.grad_cam(GradCAM)),
    ("cannot be called as <lambda>.model, inputs, targets.*: too many", lambda net: peers.quantus(lambda i: i)),
    (r'peers\.quantus\(quantus\.explain, method="InputXGradient"\)', lambda net: peers.quantus("InputXGradient")),
    ("ReLU is not a zennit attributor: it has no composite", lambda net: peers.zennit(nn.ReLU())),
    ("unknown option 'nsteps' of captum.IntegratedGradients; did you mean n_steps",
     lambda net: peers.captum(captum.attr.IntegratedGradients(net), nsteps=5)),
    ("unknown option 'perturbation_per_eval'",  # which captum ignores
     lambda net: peers.captum(captum.attr.FeatureAblation(net), perturbation_per_eval=5)),
    ("unknown option 'nt_sample'", lambda net: peers.captum(captum.attr.NoiseTunnel(Saliency(net)), nt_sample=5)),
    ("captum.Occlusion needs the option sliding_window_shapes", lambda net: peers.captum(captum.attr.Occlusion(net))),
    ("captum.Saliency: the run itself passes target", lambda net: peers.captum(Saliency(net), target=1)),
    ("unknown option 'eigensmooth' of pytorch_grad_cam.GradCAM",
     lambda net: peers.grad_cam(GradCAM(net, [net[2]]), eigensmooth=True)),
    ("unknown method 'Salency' of quantus.explain; did you mean Saliency",
     lambda net: peers.quantus(quantus.explain, method="Salency")),
    ("zennit.SimpleNamespace accepts no options when it is called; pass sign",
     lambda net: peers.zennit(SimpleNamespace(composite=None, model=net), sign=3)),
    ("unexpected keyword argument 'size'", lambda net: peers.quantus(lambda m, i, t, *, side=1: i, size=5)),
    (f"explain is a function from quantus; {CONVERT}quantus", lambda net: sb.load_explainer(quantus.explain)),
    ("explain is a function from quantus",
     lambda net: sb.load_explainer(partial(quantus.explain, method="Saliency"))),
    ("Saliency is a class from captum", lambda net: sb.load_explainer(Saliency)),
    (f"Saliency is an object from captum; {CONVERT}captum", lambda net: sb.load_explainer(Saliency(nn.ReLU()))),
])  # fmt: skip
def test_wrong_objects_and_options_are_rejected(words, call):
    refused(words, call, made())


@pytest.mark.parametrize(("change", "said"), [
    (lambda maps: maps.permute(0, 2, 3, 1), r"of shape .*, 3\), not .* channels must follow the batch"),
    (lambda maps: maps[0, 0], "of shape"),
    (lambda maps: maps[..., :0], "of shape"),
    (lambda maps: maps + 0j, "complex maps"),
    (lambda maps: {"maps": maps}, "returned dict, not maps"),
])  # fmt: skip
def test_invalid_maps_and_other_networks_are_rejected(change, said, classifier, images):
    explainer = peers.quantus(lambda model, inputs, targets: change(torch.as_tensor(inputs)))
    refused(said, explainer, classifier, images, ONE_HOT)
    explainer = peers.captum(Saliency(made()))
    refused(r"captum\.Saliency was created with a network other than", explainer, classifier, images, ONE_HOT)


def test_options_distinguish_explainers(network, classifier, images):
    plain, signed = (peers.captum(Saliency(network), **options) for options in ({}, {"abs": False}))
    assert (str(plain), str(signed)) == ("captum.Saliency", "captum.Saliency:abs=False")
    assert (plain.identity[1], signed.identity[1]) == ("{}", '{"abs": false}')
    assert not torch.equal(plain(classifier, images, ONE_HOT), signed(classifier, images, ONE_HOT))


def test_run_with_captum_counts_passes_and_resumes(network, shapes, tmp_path):
    def scored(limit):
        explainer = as_explainer(peers.captum(captum.attr.IntegratedGradients(network), n_steps=4))
        return sb.run(dataset=str(shapes), model=sb.load_classifier(network, mean=MEAN, std=STD), target="predicted",
                      explainers=["gradient", explainer], metrics=["saliency_miou"], limit=limit, batch_size=4,
                      device="cpu", out=tmp_path / "run", progress=False)  # fmt: skip

    run = scored(8)
    passes = {cell.explainer: cell.forward_passes for cell in run.cells}
    assert passes["captum.IntegratedGradients"].explain == 4 * 8
    assert scored(8).complete
    assert not scored(12).complete
    assert "captum.IntegratedGradients" in run.report.read_text(encoding="utf-8")
