"""Convolutional networks with hand-written weights: every logit is a sum over pixels, so the evidence is known.

    logit_k = sum over positions q and features f of  c_kf(q) = gate_k(q) head_kf relu(features_f(image))(q)
    e_k(p)  = sum over q and f of c_kf(q) |w_f(p - q)| / sum |w_f|,    so that the sum of e_k is logit_k

`features` detects colours or textures, `head` contains a weight per feature and class, and `gate` contains a weight per
position. The contribution of a feature at a position is divided among the pixels in the filter's receptive field, in
proportion to the magnitudes of the filter's weights w. e_k is the correct map of class k. Filters for colours read a
single pixel.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from saliency_bench.recipes.metrics_check.drawings import CELL, CLASSES, COLOURS, QUADRANTS, SIDE, TEXTURES

# Thresholds of the features. They are above the responses to noise and to the edge of an object.
COLOUR_FROM, TEXTURE_FROM = 0.1, 0.125
LOGIT = 6.0  # approximate logit of the decided class; the rival's logit is about half
AGAINST = 0.2  # weight of a feature against each other class, relative to the weight for its class


class KnownEvidence(nn.Module):
    """A network with known evidence, which maps images (B, 3, H, W) to logits (B, K).

    Args:
        features: Convolution that detects features.
        head: A 1 x 1 convolution from features to classes.
        gate: Factors that multiply the evidence, (K, H, W) or (1, 1, 1).
    """

    gate: Tensor

    def __init__(self, features: nn.Conv2d, head: nn.Conv2d, gate: Tensor):
        super().__init__()
        self.features, self.head = features, head
        self.register_buffer("gate", gate)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits (B, K)."""
        return (self.gate * self.head(functional.relu(self.features(images)))).sum((2, 3))

    def evidence(self, images: Tensor) -> Tensor:
        """Return the contribution of each pixel to each logit, (B, K, H, W)."""
        active = functional.relu(self.features(images))
        adds = self.head.weight[:, :, 0, 0, None, None] * active[:, None] * self.gate[:, None]  # (B, K, F, H, W)
        read = self.features.weight.abs().sum(1, keepdim=True)
        shares = read / read.sum((2, 3), keepdim=True)
        wide = functional.conv_transpose2d(adds.flatten(0, 1), shares, groups=len(shares)).sum(1)
        return _folded(wide, *images.shape[2:]).unflatten(0, adds.shape[:2])


@dataclass(frozen=True)
class Kind:
    """A kind of evidence.

    Attributes:
        layout: Layout of the images.
        reads: Property of the drawing that determines the class: "colour", "quadrant" or "stripes".
        classes: Names of the classes.
        about: Short description of the evidence.
        mask: "object", or "evidence" for a control in which the mask is the patch that determines the class.
    """

    layout: str
    reads: str
    classes: tuple[str, ...]
    about: str
    mask: str = "object"


KINDS = {
    "colour": Kind("scene", "colour", COLOURS, "the colour of a patch on the object"),
    "position": Kind("scene", "quadrant", QUADRANTS, "the position of the coloured patch in the picture"),
    "texture": Kind("object", "stripes", TEXTURES, "the stripes on a part of the object"),
    "context": Kind("scene", "stripes", TEXTURES, "stripes beside the object"),
    "grid": Kind("grid", "colour", COLOURS, "a coloured patch in a cell of a grid"),
    "control": Kind("scene", "colour", COLOURS, "the colour of a patch, as in the colour network", "evidence"),
}


def network(kind: str) -> KnownEvidence:
    """Return the frozen network `kind`, in evaluation mode."""
    entry = KINDS[kind]
    if entry.reads == "stripes":
        features, unit = _texture_features(), 0.07 * 35
    else:
        features, unit = _colour_features(), 0.2 * (25 if entry.layout == "grid" else 49)
    head = nn.Conv2d(features.out_channels, CLASSES, 1, bias=False)
    weights = _contrasted(torch.eye(CLASSES)).repeat(1, features.out_channels // CLASSES)
    if entry.reads == "quadrant":  # any colour is evidence for the quadrant that contains it
        weights = torch.ones(CLASSES, CLASSES)
    head.weight.data = (LOGIT / unit * weights)[:, :, None, None]
    gate = _quadrants() if entry.reads == "quadrant" else torch.ones(1, 1, 1)
    return KnownEvidence(features, head, gate).requires_grad_(False).eval()


def _folded(wide: Tensor, height: int, width: int) -> Tensor:
    """Crop maps to (N, height, width).

    The values in the margin are added to the border pixels that padding had replicated.
    """
    maps = wide
    for dim, size in ((1, height), (2, width)):
        margin = (maps.shape[dim] - size) // 2
        places = (torch.arange(maps.shape[dim], device=maps.device) - margin).clamp(0, size - 1)
        shape = [size if place == dim else length for place, length in enumerate(maps.shape)]
        maps = maps.new_zeros(shape).index_add(dim, places, maps)
    return maps


def _contrasted(speaks: Tensor) -> Tensor:
    """Return 1 where a feature is evidence for a class (`speaks` is 1), else `-AGAINST` (`speaks` is 0)."""
    return speaks - AGAINST * (1 - speaks)


def _colour_features() -> nn.Conv2d:
    """Return a convolution with four channels, which detect red, green, yellow and blue, and its thresholds."""
    directions = torch.tensor([[1.0, -1, 0], [-1, 1, 0], [0.5, 0.5, -1], [-0.5, -0.5, 1]])
    features = nn.Conv2d(3, CLASSES, 1)
    features.load_state_dict({"weight": directions[:, :, None, None], "bias": torch.full((CLASSES,), -COLOUR_FROM)})
    return features


def _texture_features() -> nn.Conv2d:
    """Return a convolution with eight channels: the response to each texture, and the negative of each response."""
    fine, wide = torch.tensor([0, -1, 2, -1, 0]) / 4, torch.tensor([-1, 0, 2, 0, -1]) / 4
    smooth = torch.tensor([0, 1, 2, 1, 0]) / 4
    filters = torch.stack([torch.outer(smooth, fine), torch.outer(fine, smooth), torch.outer(fine, fine),
                           torch.outer(smooth, wide)])  # fmt: skip
    features = nn.Conv2d(3, 2 * CLASSES, 5, padding=2, padding_mode="replicate")
    weight = torch.cat([filters, -filters])[:, None].repeat(1, 3, 1, 1) / 3
    features.load_state_dict({"weight": weight, "bias": torch.full((2 * CLASSES,), -TEXTURE_FROM)})
    return features


def _quadrants() -> Tensor:
    """Return a gate (K, H, W) in which each quadrant is evidence for one class."""
    cells = torch.arange(SIDE) // CELL
    return _contrasted((cells[:, None] * 2 + cells == torch.arange(CLASSES)[:, None, None]).float())
