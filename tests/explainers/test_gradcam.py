import captum.attr
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from saliency_bench import load_classifier, load_explainer, targets
from saliency_bench.errors import UserError

MEAN, STD = (0.5,) * 3, (0.1,) * 3


def small(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 12, 3, stride=2, padding=1), nn.ReLU(),
        nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(48, 4),
    )  # fmt: skip


class Branched(nn.Module):
    """A skip connection and a functional ReLU."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.body = nn.Conv2d(8, 8, 3, padding=1)
        self.head = nn.Linear(8, 4)

    def forward(self, x):
        x = F.relu(self.stem(x))
        x = F.relu(x + self.body(x))
        return self.head(x.mean(dim=(2, 3)))


NETWORKS = {"small": (small, "3"), "branched": (Branched, "body")}


@pytest.mark.parametrize("name", NETWORKS)
def test_agrees_with_captum(name):
    make, layer = NETWORKS[name]
    model = make().eval()
    images = torch.rand(3, 3, 24, 20)
    labels = torch.tensor([0, 3, 1])
    classifier = load_classifier(model, mean=MEAN, std=STD, layer=layer, device="cpu")
    ours = load_explainer("gradcam")(classifier, images, targets.one_hot(labels, 4))
    theirs = captum.attr.LayerGradCam(model, dict(model.named_modules())[layer]).attribute(
        (images - 0.5) / 0.1, target=labels, relu_attributions=True
    )
    theirs = F.interpolate(theirs, size=(24, 20), mode="bilinear", align_corners=False)[:, 0]
    assert theirs.abs().max() > 0
    assert (ours - theirs).abs().max() <= 1e-4 * theirs.abs().max()


def test_agrees_with_captum_on_a_contrast_which_keeps_negative_values():
    model = small().eval()
    images = torch.rand(2, 3, 16, 16)
    classifier = load_classifier(model, mean=MEAN, std=STD, device="cpu")
    ours = load_explainer("gradcam")(classifier, images, targets.contrast([0, 1], [2, 3], 4))
    captums = captum.attr.LayerGradCam(model, model[3])
    inputs = (images - 0.5) / 0.1
    theirs = captums.attribute(inputs, target=torch.tensor([0, 1])) - captums.attribute(
        inputs, target=torch.tensor([2, 3])
    )
    theirs = F.interpolate(theirs, size=(16, 16), mode="bilinear", align_corners=False)[:, 0]
    assert (ours < 0).any()
    assert (ours - theirs).abs().max() <= 1e-4 * theirs.abs().max()


def test_one_layer_network_has_a_closed_form():
    """logit_k = sum_c v_kc mean(A_c): the gradient's mean is v_kc / (h w), so the map is sum_c v_kc A_c / (h w)."""
    torch.manual_seed(3)
    convolution, head = nn.Conv2d(3, 5, 1), nn.Linear(5, 2)
    model = nn.Sequential(convolution, nn.AdaptiveAvgPool2d(1), nn.Flatten(), head)
    images = torch.rand(2, 3, 6, 7)
    classifier = load_classifier(model, layer="0", device="cpu")
    ours = load_explainer("gradcam")(classifier, images, targets.one_hot([0, 1], 2))
    with torch.no_grad():
        expected = torch.einsum("bc,bchw->bhw", head.weight, convolution(images)).relu() / 42
    torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-7)


def test_the_layer_is_found_and_can_be_named():
    classifier = load_classifier(small(), device="cpu")
    images = torch.rand(1, 3, 16, 16)
    target = targets.one_hot([0], 4)
    assert classifier.cam_layer(images) == "3"
    named = load_explainer("gradcam", layer="0")(classifier, images, target)
    assert not torch.equal(named, load_explainer("gradcam")(classifier, images, target))


def test_the_backward_pass_stops_at_the_layer():
    model = small()
    reached = []
    model[0].register_full_backward_hook(lambda *_: reached.append("stem"))
    classifier = load_classifier(model, device="cpu")
    load_explainer("gradcam")(classifier, torch.rand(1, 3, 16, 16), targets.one_hot([0], 4))
    assert reached == []


@pytest.mark.parametrize(("layer", "words"), [("5", "needs a feature map"), ("nope", "unknown layer")])
def test_a_layer_it_is_not_defined_for_is_refused_by_name(layer, words):
    classifier = load_classifier(small(), device="cpu")
    with pytest.raises(UserError, match=words):
        load_explainer("gradcam", layer=layer)(classifier, torch.rand(1, 3, 16, 16), targets.one_hot([0], 4))
