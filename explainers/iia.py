"""Iterated integrated attributions (Barkan et al., 2023): gradients averaged along paths of the image and the layer.

    A(a) = the layer at x' + a (x - x')        v(a, b) = r + b (A(a) - r)        r = min over a of A(a), for each unit
    map = sum over channels of the mean over a and b of d score / d v at v(a, b) * relu(v(a, b))

x' is the image that is zero after normalisation. a and b have the steps + 1 values 0, 1 / steps ... 1. The method is
two-fold: for each point on the image's path, there is a path of the layer's output. The layer is the same as in
gradcam. This implementation computes means where the authors compute sums; the ranking of pixels is the same. The
authors upsample the map bicubically and scale it to [0, 1]; here it is upsampled bilinearly and not scaled.

The authors' two-fold code computes the minimum over an axis of size one, so r = A(a) and v does not depend on b. Their
map is therefore the sum over a of gradient * relu(A(a)); `published=True` returns the mean instead of the sum. The
definition of r above comes from their three-fold code.

On a vision transformer, A = softmax(q k^T / sqrt(d)) is the attention matrix of the last block, of shape (heads, T, T).
As in the authors' code, everything else is computed from the image x' + a (x - x'). The mean over heads replaces the
sum over channels, v is never negative, and the map is the class token's row over the patches. If the classification
head also reads the distillation token, or reads the mean of the patch tokens instead of a class token, the rows of
these tokens are averaged. In this average, all patch tokens together count as one token. The authors set r = 0 and
combine all blocks by gradient rollout, which corresponds to `published=True`:

    R = N_L ... N_1 N_0
    N_l = (mean over heads, a and b of relu(d score / d A_l x A_l) + I), each row divided by its sum

A_L is v(a, b), and the other A_l are computed by the network. The map is (R - I)[class token, patches].
"""

from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from saliency_bench.compute.classifiers.attention import SOFTMAX, AttentionRecorder, recording_attention, tokens_of
from saliency_bench.compute.classifiers.classifier import Classifier
from saliency_bench.compute.classifiers.cuts import check_gradient
from saliency_bench.compute.classifiers.layers import (
    MapLayout,
    cam_layer,
    detached_at,
    has_feature_maps,
    last_feature_map,
    layout_of,
    replaced_at,
    runs_of,
)
from saliency_bench.compute.classifiers.passes import pictures_per_pass
from saliency_bench.data.geometry import enlarge
from saliency_bench.declarations import explainer
from saliency_bench.errors import UserError
from saliency_bench.explainers._checks import check_batch_size, check_count
from saliency_bench.explainers._features import feature_layout
from saliency_bench.explainers._flow import by_row, product
from saliency_bench.explainers._gradients import derivative, derivatives
from saliency_bench.target_weights import score
from saliency_bench.types import Images, Maps, On, Target

FEATURES_PER_PASS = 2**24  # values at the layer per pass; the later layers then need about the memory of 2^19 pixels


def passes(options: dict, height: int, width: int, attention: bool = False) -> int:
    """Return the number of forward passes for one image.

    There is one pass for each point on the image's path. A vision transformer (`attention`) needs one more pass for
    each point on the layer's paths. For feature maps, the points of all layer paths share one pass, unless the layer
    has more than 2^24 values at all points together.
    """
    first = (options["steps"] or (5 if attention else 10)) + 1
    points = first if options["published"] and not attention else first**2
    return first + (points if attention else -(-points // (options["batch_size"] or points)))


def check(*, steps: int | None, batch_size: int | None, **others: object) -> None:
    """Raise UserError if an option is out of range."""
    check_count("iia", "steps", 1 if steps is None else steps)
    check_batch_size("iia", batch_size)


@explainer(
    version=4,
    needs="activations or attention, gradients",
    passes=passes,
    signed=True,
    check=check,
    also_called=("iterated integrated attributions",),
)
def iia(
    classifier: Classifier,
    images: Images,
    target: Target,
    *,
    layer: str | None = None,
    steps: int | None = None,
    published: bool = False,
    on: On = "logit",
    batch_size: int | None = None,
) -> Maps:
    """Return a layer's gradients times its positive values, averaged along paths of the image and the layer.

    For feature maps, the network below the layer is run steps + 2 times, and the network above the layer is run at each
    of the (steps + 1)^2 points. A pass runs the network on one image and replaces the layer's output with the points. A
    skip connection around the layer keeps the values of the image. If branches are concatenated after the layer, the
    network below the layer is run at each point.

    Args:
        classifier: Network to explain.
        images: Images of shape (B, 3, H, W) with values in [0, 1].
        target: Weights over the logits, of shape (B, K).
        layer: Dotted name of a module with a feature map. None: the last module whose feature map contains all
            evidence, or the last attention if the network's features are tokens.
        steps: Number of steps of each path. None: 10, or 5 for a vision transformer (36 forward passes, after 6 passes
            that compute A).
        published: Whether to follow the authors' code. The module's docstring explains the differences.
        on: Whether the target's weights apply to logits ("logit") or to probabilities ("probability").
        batch_size: Number of points per batch. None: as many as fit in a fixed memory budget.

    Returns:
        Signed maps of shape (B, H, W).

    Raises:
        UserError: The layer does not exist, has no feature map, or runs on several views of an image; no layer contains
            all evidence; or the network's last features are tokens and its attention does not cover all pairs of
            patches.
    """
    check(steps=steps, batch_size=batch_size)
    layer = layer or classifier.layer or _feature_layer(classifier, images)
    maps = []
    for image, row in zip(images.split(1), target.split(1), strict=True):
        if layer is None:
            maps.append(_of_attention(classifier, image, row, steps or 5, published, on, batch_size))
        else:
            maps.append(_of_features(classifier, image, row, layer, steps or 10, published, on, batch_size))
    return torch.cat(maps)


def _feature_layer(classifier: Classifier, images: Images) -> str | None:
    """Return the layer of the last feature map, or None if the features are tokens and attention can be recorded."""
    layer = last_feature_map(classifier, images)
    layout = None if layer is None else layout_of(classifier, images, layer)
    if layout is None or layout.axes == "BNC":
        with suppress(UserError):
            tokens_of(classifier, images)
            return None
    if layer is None and has_feature_maps(classifier, images):
        return cam_layer(classifier, images)  # raises an error with the reason
    return layer


def _of_features(
    classifier: Classifier,
    image: Images,
    row: Target,
    layer: str,
    steps: int,
    published: bool,
    on: str,
    batch_size: int | None,
) -> Maps:
    """Return the map (1, H, W) of one image, computed from feature maps."""
    check_gradient(classifier, image, classifier.module_named(layer))
    places = torch.linspace(0, 1, steps + 1, device=image.device)
    points, layout = _along_path(classifier, image, layer, places, batch_size)  # (a, ...), such as (a, C, h, w)
    if not published:
        low = points.amin(dim=0)
        points = torch.cat([low + place * (points - low) for place in places])  # (b a, ...)
    attribution = _attribution(classifier, image, row, layer, points, on, batch_size)
    return enlarge(layout.channels_first(attribution).sum(dim=1), image)


def _along_path(
    classifier: Classifier, image: Images, layer: str, places: Tensor, batch_size: int | None
) -> tuple[Tensor, MapLayout]:
    """Return the layer's output (a, ...) along the path from x' to an image, and its layout."""
    start = classifier.mean
    parts = []
    for chunk in places.split(pictures_per_pass(image, batch_size)):
        with detached_at(classifier.module_named(layer)) as outputs, torch.no_grad():
            classifier(start + chunk.view(-1, 1, 1, 1) * (image - start))
        layout = feature_layout("iia", classifier, image, layer, outputs)
        parts.append(outputs[-1].detach())
    return torch.cat(parts), layout


def _attribution(
    classifier: Classifier, image: Images, row: Target, layer: str, points: Tensor, on: str, batch_size: int | None
) -> Tensor:
    """Return the mean over the points of gradient * relu(point), of shape (1, ...)."""
    total = torch.zeros_like(points[0])
    for chunk in points.split(batch_size or max(1, FEATURES_PER_PASS // points[0].numel())):
        chunk = chunk.detach().requires_grad_()
        logits = _logits_at(classifier, image, layer, chunk)
        gradient = derivative(classifier, score(logits, row, on, classifier).sum(), chunk)
        total += (gradient * chunk.detach().relu()).sum(dim=0)
    return (total / len(points))[None]


def _logits_at(classifier: Classifier, image: Images, layer: str, points: Tensor) -> Tensor:
    """Return the logits (n, K) of one image if the layer's output is replaced with each of n points.

    One pass of a single image is sufficient for all points, unless the network above the layer needs n images. This
    part of the network needs n images if it joins another branch, or reshapes features according to the number of
    images (as in PVT v2 of transformers).
    """
    module, runs = classifier.module_named(layer), runs_of(classifier, image, layer)
    with suppress(RuntimeError, UserError), replaced_at(module, points, runs):
        logits = classifier(image)
        if len(logits) == len(points):
            return logits
    with replaced_at(module, points, runs):
        return classifier(image.expand(len(points), -1, -1, -1))


def _of_attention(
    classifier: Classifier, image: Images, row: Target, steps: int, published: bool, on: str, batch_size: int | None
) -> Maps:
    """Return the map (1, H, W) of one image, computed from attention."""
    places = torch.linspace(0, 1, steps + 1, device=image.device)
    way = classifier.mean + places.view(-1, 1, 1, 1) * (image - classifier.mean)  # (a, 3, H, W)
    size = pictures_per_pass(image, batch_size)
    features = torch.cat([_last_attention(classifier, chunk) for chunk in way.split(size)])  # (a, heads, T, T)
    low = torch.zeros_like(features[0]) if published else features.amin(dim=0)
    count = len(places) ** 2
    totals: list[Tensor] = []
    for numbers in torch.arange(count, device=image.device).split(size):
        a, b = numbers // len(places), numbers % len(places)
        points = low + places[b].view(-1, 1, 1, 1) * (features[a] - low)
        with recording_attention(classifier, way[a], 0 if published else -1, Replacing, points=points) as seen:
            total = score(classifier(way[a]), row, on, classifier).sum()
        matrices = seen.matrices if published else seen.matrices[-1:]
        gradients = derivatives(classifier, total, matrices)
        products = (g.float() * matrix.detach().float() for g, matrix in zip(gradients, matrices, strict=True))
        sums = [(p.relu() if published else p).mean(dim=1).sum(dim=0, keepdim=True) for p in products]  # each (1, T, T)
        totals = [before + now for before, now in zip(totals, sums, strict=True)] if totals else sums
    means = [total / count for total in totals]
    return seen.maps(product(map(by_row, means)) if published else means[0], image)


def _last_attention(classifier: Classifier, images: Images) -> Tensor:
    """Return the attention of the last block, float (B, heads, T, T)."""
    with torch.no_grad(), recording_attention(classifier, images) as seen:
        classifier(images)
    return seen.matrices[-1].float()


class Replacing(AttentionRecorder):
    """AttentionRecorder that replaces the output of the last block's softmax.

    Attributes:
        points: Replacement of the output, float (B, heads, T, T).
    """

    def __init__(self, start: int | None = None, whole: bool = False, *, points: Tensor):
        super().__init__(start, whole)
        self.points = points

    def compute(self, function: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
        """Call a function, or return the points if the function is the last softmax."""
        output = function(*args, **kwargs)
        is_last = function in SOFTMAX and output.ndim > 2 and len(self.matrices) == self.tokens.blocks - 1
        return self.points.to(output.dtype, copy=True) if is_last else output
