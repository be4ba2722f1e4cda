from copy import deepcopy

import captum.attr
import pytest
import torch
from torch import nn

from saliency_bench import load_classifier, load_explainer, targets
from saliency_bench.errors import UserError

# A deep network has a ReLU so close to its kink that the last bit of another batch size turns it.
KINKS = pytest.mark.parametrize("peer", ["small", "branched"], indirect=True)


def test_agrees_with_captum(peer, error_of):
    ours = load_explainer("gradient")(peer.classifier, peer.images, peer.target)
    theirs = captum.attr.Saliency(peer.model).attribute(
        peer.inputs, target=peer.labels
    )  # absolute, by normalised input
    assert error_of(ours, (theirs / peer.classifier.std).amax(dim=1)) <= 1e-4
    ours = load_explainer("gradient", reduction="sum")(peer.classifier, peer.images, peer.target)
    theirs = captum.attr.Saliency(peer.model).attribute(peer.inputs, target=peer.labels, abs=False)
    assert error_of(ours, (theirs / peer.classifier.std).sum(dim=1)) <= 1e-4


class Polynomial(nn.Module):
    """logit_k = sum over pixels of (k + 1) * (red^2 - 3 * green)."""

    def forward(self, x):
        value = (x[:, 0] ** 2 - 3 * x[:, 1]).sum(dim=(1, 2))
        return torch.stack([value, 2 * value], dim=1)


def test_a_case_worked_out_by_hand():
    """d logit_1 / d red = 4 red and d / d green = -6: the larger in size is 6 up to red = 1.5, the sum 4 red - 6."""
    images = torch.rand(2, 3, 4, 5) + torch.tensor([0.0, 1.0]).view(2, 1, 1, 1)
    classifier, target = load_classifier(Polynomial(), device="cpu", mean=0, std=1), targets.one_hot([1, 1], 2)
    largest = load_explainer("gradient")(classifier, images, target)
    torch.testing.assert_close(largest, (4 * images[:, 0]).clamp(min=6))
    assert (largest > 6).any()
    summed = load_explainer("gradient", reduction="sum")(classifier, images, target)
    torch.testing.assert_close(summed, 4 * images[:, 0] - 6)


@KINKS
def test_agrees_with_differences(peer):
    """The probability of a contrast when one value of the image goes up and down by 1e-6, in float64."""
    target = targets.contrast([0, 3, 1], [1, 2, 2], 4)
    ours = load_explainer("gradient", reduction="sum", on="probability")(peer.classifier, peer.images, target)
    model, std = deepcopy(peer.model).double(), peer.classifier.std.double()
    for y, x in [(3, 7), (10, 11), (19, 4)]:
        expected = torch.zeros(3, dtype=torch.float64)
        for channel in range(3):
            step = torch.zeros_like(peer.inputs, dtype=torch.float64)
            step[:, channel, y, x] = 1e-6
            with torch.no_grad():
                up, down = (model(peer.inputs + sign * step / std).softmax(dim=1) for sign in (1, -1))
            expected += ((up - down) * target).sum(dim=1) / 2e-6
        torch.testing.assert_close(ours[:, y, x].double(), expected, rtol=1e-3, atol=1e-7)


def test_bad_options(peer):
    with pytest.raises(UserError, match=r"'mean'; known: max, sum"):
        load_explainer("gradient", reduction="mean")
