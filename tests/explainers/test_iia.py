import pytest
import torch
from torch import nn
from torch.nn import functional as F

from saliency_bench import load_classifier, load_explainer, targets
from saliency_bench.errors import UserError


def parts():
    torch.manual_seed(0)
    trunk = nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1), nn.ReLU(), nn.Conv2d(6, 8, 3, stride=2, padding=1), nn.Softplus()
    )
    head = nn.Sequential(nn.Conv2d(8, 8, 3), nn.Tanh(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 4))
    return trunk, head


@pytest.mark.parametrize("published", [False, True])
@pytest.mark.parametrize("batch_size", [None, 2])
def test_agrees_with_a_slow_second_writing_of_its_equation(published, batch_size, error_of):
    trunk, head = parts()
    classifier = load_classifier(nn.Sequential(trunk, head), mean=(0.4,) * 3, std=(0.2,) * 3, layer="0", device="cpu")
    images, target, steps = torch.rand(2, 3, 12, 10), targets.contrast([0, 3], [1, 2], 4), 4
    explainer = load_explainer("iia", steps=steps, published=published, batch_size=batch_size)
    ours = explainer(classifier, images, target)
    for index, x in enumerate((images - 0.4) / 0.2):
        with torch.no_grad():
            features = [trunk(a / steps * x[None])[0] for a in range(steps + 1)]
        low = torch.stack(features).amin(dim=0)
        products = []
        for feature in features:
            for b in range(steps + 1):
                v = (feature if published else low + b / steps * (feature - low)).clone().requires_grad_()
                (head(v[None])[0] * target[index]).sum().backward()
                products.append(v.grad * v.detach().relu())
        small = (sum(products) / len(products)).sum(dim=0)
        expected = F.interpolate(small[None, None], size=(12, 10), mode="bilinear", align_corners=False)[0, 0]
        assert error_of(ours[index], expected) <= 1e-4


def test_under_a_linear_head_it_has_a_closed_form():
    """d score / d v is the head's weight u everywhere, and relu(v) = v: the mean over b of v is (r + A) / 2."""
    torch.manual_seed(1)
    trunk = nn.Sequential(nn.Conv2d(3, 5, 3), nn.ReLU())
    head = nn.Linear(5 * 36, 2)
    classifier = load_classifier(nn.Sequential(trunk, nn.Flatten(), head), layer="0", device="cpu")
    images = torch.rand(1, 3, 8, 8)
    ours = load_explainer("iia", steps=6)(classifier, images, targets.one_hot([1], 2))
    with torch.no_grad():
        features = torch.stack([trunk(a / 6 * images)[0] for a in range(7)])
        mean = (features.amin(dim=0) + features.mean(dim=0)) / 2
        small = (head.weight[1].view(5, 6, 6) * mean).sum(dim=0)
    expected = F.interpolate(small[None, None], size=(8, 8), mode="bilinear", align_corners=False)[0]
    torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-6)


class Past(nn.Module):
    """A second branch that goes past the layer and is summed or concatenated."""

    def __init__(self, join):
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.beside, self.join = nn.Conv2d(3, 4, 3), nn.Conv2d(3, 4, 3), join
        self.head = nn.LazyLinear(3)

    def forward(self, x):
        return self.head(self.join(self.layer(x), self.beside(x)).tanh().flatten(1))


def test_a_sum_past_the_layer_stays_what_it_is_for_the_image(error_of):
    model, images, target = Past(torch.add), torch.rand(1, 3, 6, 6), targets.one_hot([1], 3)
    model(images)
    ours = load_explainer("iia", steps=2, layer="layer", published=True)(
        load_classifier(model, device="cpu"), images, target
    )
    small = torch.zeros(4, 4)
    for a in (0, 0.5, 1):
        v = model.layer(a * images).detach().requires_grad_()
        model.head((v + model.beside(images)).tanh().flatten(1))[0, 1].backward()
        small += (v.grad * v.detach().relu())[0].sum(dim=0) / 3
    expected = F.interpolate(small[None, None], size=(6, 6), mode="bilinear", align_corners=False)[0]
    assert error_of(ours, expected) <= 1e-4


def test_a_branch_concatenated_past_the_layer_is_refused():
    model, images = Past(lambda a, b: torch.cat([a, b], dim=1)), torch.rand(1, 3, 6, 6)
    model(images)
    with pytest.raises(UserError, match="goes past layer layer"):
        load_explainer("iia", layer="layer")(load_classifier(model, device="cpu"), images, targets.one_hot([1], 3))


def test_bad_layers_and_options():
    images, target = torch.rand(1, 3, 8, 8), targets.one_hot([0], 4)
    classifier = load_classifier(nn.Sequential(*parts()), device="cpu")
    with pytest.raises(UserError, match="steps of iia must be at least 1"):
        load_explainer("iia", steps=0)
    with pytest.raises(UserError, match="iia needs a feature map"):
        load_explainer("iia", layer="1")(classifier, images, target)
    with pytest.raises(UserError, match="unknown layer"):
        load_explainer("iia", layer="9")(classifier, images, target)
