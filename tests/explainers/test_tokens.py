"""Test the matching of tokens to patches, for all ways to compute patches and to cut gradients.

The expected maps come from the same network with a convolution for its patches, tokens in row order, and no cut.
"""

import pytest
import torch
from refusals import refused
from small_networks import Custom
from torch import nn

from saliency_bench import load_classifier, load_explainer
from saliency_bench.compute.classifiers.attention import tokens_of

IMAGES = torch.rand(3, 3, 32, 32, generator=torch.Generator().manual_seed(1))


def classifier_of(model):
    return load_classifier(model, mean=(0.5,) * 3, std=(0.3,) * 3, device="cpu")


def as_linear(convolution):
    """Return a linear layer of each patch's pixels, in the order of `Reshaped`, that equals a convolution."""
    side, linear = convolution.kernel_size[0], nn.Linear(convolution.weight[0].numel(), convolution.out_channels)
    linear.weight.data = convolution.weight.permute(0, 2, 3, 1).flatten(1).detach()
    linear.bias.data = convolution.bias.detach()
    return side, linear


class Reshaped(nn.Module):
    """Patches (B, C, h, w) without a convolution, as in vit-pytorch: reshaped pixels, norms, a linear layer."""

    def __init__(self, convolution):
        super().__init__()
        self.side, self.linear = as_linear(convolution)

    def forward(self, x):
        x = x.unflatten(2, (-1, self.side)).unflatten(4, (-1, self.side))  # (B, 3, h, p, w, p)
        x = self.linear(x.permute(0, 2, 4, 3, 5, 1).flatten(3))
        return x.permute(0, 3, 1, 2)


class Unfolded(Reshaped):
    """Patches computed with Tensor.unfold."""

    def forward(self, x):
        x = x.unfold(2, self.side, self.side).unfold(3, self.side, self.side)  # (B, 3, h, w, p, p)
        return self.linear(x.permute(0, 2, 3, 4, 5, 1).flatten(3)).permute(0, 3, 1, 2)


class ByUnfold(Reshaped):
    """Patches computed with nn.Unfold."""

    def forward(self, x):
        h, w = x.shape[2] // self.side, x.shape[3] // self.side
        x = nn.functional.unfold(x, self.side, stride=self.side).transpose(1, 2).unflatten(2, (3, -1))
        return self.linear(x.transpose(2, 3).flatten(2)).transpose(1, 2).unflatten(2, (h, w))


class Split(nn.Module):
    """Patches computed as the sum of two convolutions, each over half of the channels."""

    def __init__(self, convolution):
        super().__init__()
        self.convolution = convolution

    def forward(self, x):
        first = torch.cat([x[:, :1], torch.zeros_like(x[:, 1:])], dim=1)
        return self.convolution(first) + self.convolution(x - first) - self.convolution(torch.zeros_like(x))


EXPLAINERS = ("attention", "rollout", "gae", "gradcam_vit", "gradient_rollout", "tattr", "iia:steps=2")
CLASSES = torch.eye(3)[[0, 2, 1]]


def maps_of(model, explainer, images=IMAGES):
    return load_explainer(explainer)(classifier_of(model.eval()), images, CLASSES)


@pytest.mark.parametrize("kind", [Reshaped, Unfolded, ByUnfold, Split])
@pytest.mark.parametrize("before", [0, 1, 3])
def test_maps_do_not_depend_on_patch_implementation(kind, before, tiny):
    images = IMAGES[..., :24]
    model, plain = (tiny(before=before, patches=48) for _ in range(2))
    model.patch = kind(plain.patch)
    model, plain = model.double(), plain.double()  # tattr amplifies rounding errors
    torch.testing.assert_close(model(images), plain(images))
    for explainer in EXPLAINERS:
        ours, expected = maps_of(model, explainer, images), maps_of(plain, explainer, images)
        assert (ours - expected).abs().max() <= 1e-5 * expected.abs().max(), explainer


class Ordered(nn.Module):
    """Network of one block and the mean of its patches, with tokens in any order, including a class token."""

    def __init__(self, order, is_read):
        super().__init__()
        torch.manual_seed(0)
        self.patch, self.token = nn.Conv2d(3, 8, 8, stride=8), nn.Parameter(torch.rand(1, 1, 8))
        self.attention, self.head = nn.MultiheadAttention(8, 2, batch_first=True), nn.Linear(8, 3)
        self.order, self.is_read = order, is_read

    def forward(self, x):
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], dim=1)[:, self.order]
        x = x + self.attention(x, x, x, need_weights=False)[0]
        return self.head(x[:, self.is_read])


ORDERS = {
    "class token last": [*range(1, 17), 0],
    "class token in the middle": [*range(1, 9), 0, *range(9, 17)],
    "column by column": [0, *(1 + torch.arange(16).view(4, 4).T.flatten()).tolist()],
    "shuffled": torch.randperm(17, generator=torch.Generator().manual_seed(3)).tolist(),
}


@pytest.mark.parametrize("order", ORDERS)
def test_patch_tokens_are_matched_in_any_order(order):
    places, expected = ORDERS[order], Ordered(list(range(17)), 0)
    model = Ordered(places, places.index(0))
    seen = tokens_of(classifier_of(model), IMAGES)
    assert [places[token] - 1 for token in seen.patches.flatten()] == list(range(16))
    assert seen.read == (places.index(0),)
    for explainer in EXPLAINERS:
        torch.testing.assert_close(maps_of(model, explainer), maps_of(expected, explainer), rtol=1e-4, atol=1e-6)


def standardised(x, *dims):
    return (x - x.mean(dim=dims, keepdim=True)) / x.std(dim=dims, keepdim=True)


def overlapping(mixed):
    """Return two convolutions with overlapping windows, so that each pixel may change every token a little."""
    return Custom(lambda net, x: net.second(net.first(standardised(x, 2, 3) if mixed else x).relu()),
                  first=nn.Conv2d(3, 6, 3, 2, 1), second=nn.Conv2d(6, 8, 3, 2, 1))  # fmt: skip


@pytest.mark.parametrize("stem", [
    lambda patch: overlapping(False), lambda patch: overlapping(True),
    lambda patch: Custom(lambda net, x: net.patch(standardised(x, 1, 2, 3)), patch=Reshaped(patch)),
], ids=["overlapping", "mixed", "each image normalised by itself"])  # fmt: skip
def test_patches_match_last_feature_map(stem, tiny):
    model = tiny(patches=64)
    model.patch = stem(model.patch)
    assert torch.equal(tokens_of(classifier_of(model), IMAGES).patches, 1 + torch.arange(64).view(8, 8))


class Mixer(Reshaped):
    """Network whose tokens are sums of several patches."""

    def forward(self, x):
        x = super().forward(x)
        return x + x.roll(1, dims=3) + x.roll(2, dims=2)


class Cropped(Reshaped):
    """Network that uses only the centre of the image."""

    def forward(self, x):
        return super().forward(x[..., 8:-8, 8:-8])


@pytest.mark.parametrize(("stem", "patches"), [(Mixer, 64), (Cropped, 16)])
def test_tokens_that_do_not_match_patches_are_rejected(stem, patches, tiny):
    model = tiny(patches=patches)
    model.patch = stem(model.patch)
    refused(r"module:Tiny does not have one token per patch.*rise", tokens_of, classifier_of(model), IMAGES)


def test_token_grid_follows_image_size(tiny):
    classifier = classifier_of(tiny(patches=48))
    assert tokens_of(classifier, torch.rand(1, 3, 32, 24)).patches.shape == (8, 6)
    assert tokens_of(classifier, torch.rand(1, 3, 24, 32)).patches.shape == (6, 8)


def under(mode):
    """Return a decorator that calls a function without gradients."""

    def call(function, x):
        with mode():
            features = function(x)
        return features.clone()

    return call


CUTS = {
    "no_grad": under(torch.no_grad), "inference_mode": under(torch.inference_mode),
    "detach": lambda function, x: function(x).detach(),
    "detached in place": lambda function, x: function(x).clone().detach_(),
    "data": lambda function, x: function(x).data, "input": lambda function, x: function(x.detach()),
}  # fmt: skip


@pytest.mark.parametrize("cut", CUTS)
def test_raw_attention_works_and_gradients_report_the_cut(cut, tiny):
    class Probed(tiny):
        """Linear probe on features without gradients."""

        def forward(self, x):
            head, self.head = self.head, nn.Identity()
            try:
                features = CUTS[cut](super().forward, x)
            finally:
                self.head = head
            return self.head(features)

    images = IMAGES[..., :24]
    for explainer in ("attention", "rollout"):
        assert torch.equal(maps_of(Probed(patches=48), explainer, images), maps_of(tiny(patches=48), explainer, images))
    for explainer in ("gradient", "input_x_gradient", "integrated_gradients:steps=2", "smoothgrad:samples=2"):
        refused(r"the gradient is cut inside.*rise", maps_of, Probed(patches=48), explainer, images)
    for explainer in EXPLAINERS[2:]:
        if cut == "input" and explainer != "tattr":  # the pixels have no gradient, but the attention does
            assert torch.equal(maps_of(Probed(patches=48), explainer, images),
                               maps_of(tiny(patches=48), explainer, images))  # fmt: skip
            continue
        refused(r"the gradient is cut inside.*rise", maps_of, Probed(patches=48), explainer, images)
