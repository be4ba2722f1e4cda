"""Iterated integrated attributions (Barkan et al., 2023; P3), two-fold: a layer's gradient, integrated along a path of
the image and, at each of its points, along a path of the layer.

    A(a) = the layer at x' + a (x - x')        v(a, b) = r + b (A(a) - r)        r = min over a of A(a), each unit apart
    map = sum over channels of the mean over a and b of d score / d v at v(a, b) * relu(v(a, b))

x' is the image that is zero after normalisation; a and b run over the steps + 1 points 0, 1 / steps ... 1. The layer is
the last convolutional block. A mean stands where the authors sum (the same ranking); they enlarge bicubically and scale
to [0, 1], here it is bilinear and unscaled.

The authors' two-fold code takes the minimum over an axis of size one, so that r = A(a) and the path in b stands still:
their map is the sum over a of gradient * relu(A(a)), which `published=True` gives (as a mean). r above is what their
three-fold code takes.
"""

import torch
from torch import Tensor

from saliency_bench.classifier import Classifier
from saliency_bench.errors import UserError
from saliency_bench.explainers._features import enlarged, feature_map
from saliency_bench.explainers._gradients import check_count, derivative, points_per_pass
from saliency_bench.hooks import detached_at, replaced_at
from saliency_bench.targets import score
from saliency_bench.types import Images, Maps, Target

VERSION = 1
FEATURES_PER_PASS = 2**24  # numbers at the layer; with what follows, about what 2^19 pixels need


def iia(
    classifier: Classifier,
    images: Images,
    target: Target,
    *,
    layer: str | None = None,
    steps: int = 10,
    published: bool = False,
    on: str = "logit",
    batch_size: int | None = None,
) -> Maps:
    """Maps (B, H, W), signed. `layer`: dotted name of a module that gives (B, C, h, w). `batch_size`: points per pass.

    A pass at the layer runs the network on one image and puts the points in the place of the layer's output; what a
    skip connection carries past the layer stays the image's own. Errors: UserError where there is no such layer, it
    gives another shape, or another branch is concatenated after it.
    """
    check(steps=steps, batch_size=batch_size)
    layer = layer or classifier.cam_layer(images)
    places = torch.linspace(0, 1, steps + 1, device=images.device)
    maps = []
    for image, row in zip(images, target, strict=True):
        features = _along_path(classifier, image[None], layer, places, batch_size)  # (a, C, h, w)
        if published:
            points = features
        else:
            low = features.amin(dim=0)
            points = (low + places.view(-1, 1, 1, 1, 1) * (features - low)).flatten(0, 1)  # (b a, C, h, w)
        maps.append(_attribution(classifier, image[None], row[None], layer, points, on, batch_size))
    return enlarged(torch.stack(maps), images)


def check(*, steps: int, batch_size: int | None, **others: object) -> None:
    check_count("iia", "steps", steps, batch_size)


def _along_path(classifier: Classifier, image: Images, layer: str, places: Tensor, batch_size: int | None) -> Tensor:
    """(a, C, h, w): the layer's output on the way from x' to one image."""
    start = classifier.mean
    parts = []
    for some in places.split(points_per_pass(image, batch_size)):
        with detached_at(classifier.module_named(layer)) as outputs, torch.no_grad():
            classifier(start + some.view(-1, 1, 1, 1) * (image - start))
        parts.append(feature_map("iia", classifier, layer, outputs).detach())
    return torch.cat(parts)


def _attribution(
    classifier: Classifier, image: Images, row: Target, layer: str, points: Tensor, on: str, batch_size: int | None
) -> Tensor:
    """(1, h, w): mean over the points of gradient * relu(point), summed over channels."""
    total = torch.zeros_like(points[0])
    for some in points.split(batch_size or max(1, FEATURES_PER_PASS // points[0].numel())):
        some = some.detach().requires_grad_()
        try:
            with replaced_at(classifier.module_named(layer), some):
                logits = classifier(image)
        except RuntimeError as error:
            if "must match" not in str(error):
                raise
            raise UserError(f"a branch of {classifier.id} goes past layer {layer}; name another for iia") from error
        gradient = derivative(classifier, score(logits, row, on).sum(), some)
        total += (gradient * some.detach().relu()).sum(dim=0)
    return (total / len(points)).sum(dim=0, keepdim=True)
