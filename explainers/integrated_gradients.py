"""Integrated gradients (Sundararajan et al., 2017; P1 2.1.3): the gradient averaged along a straight path.

    map = sum over channels of (x - x') * sum_i w_i  d score / d image at x' + a_i (x - x')

x' is the baseline, by default the image that is zero after normalisation; a_i and w_i are nodes and weights of
Gauss-Legendre quadrature on [0, 1]. Completeness: the map sums to score(x) - score(x'), exactly where the score along
the path is a polynomial of degree below 2 * steps, else up to the quadrature's error.
"""

import numpy as np
import torch

from saliency_bench.classifier import Classifier
from saliency_bench.errors import UserError
from saliency_bench.targets import score
from saliency_bench.types import Images, Maps, Target

VERSION = 1


def integrated_gradients(
    classifier: Classifier,
    images: Images,
    target: Target,
    *,
    steps: int = 50,
    baseline: str = "zero",
    on: str = "logit",
) -> Maps:
    """Maps (B, H, W), signed. `baseline`: "zero" (after normalisation), "black" or "white" (in [0, 1])."""
    check(steps=steps, baseline=baseline)
    start = _baseline(classifier, images, baseline)
    nodes, weights = np.polynomial.legendre.leggauss(steps)  # on [-1, 1]
    mean_gradient = torch.zeros_like(images)
    for node, weight in zip((nodes + 1) / 2, weights / 2, strict=True):
        point = (start + float(node) * (images - start)).requires_grad_()
        (gradient,) = torch.autograd.grad(score(classifier(point), target, on).sum(), point)
        mean_gradient += float(weight) * gradient
    return ((images - start) * mean_gradient).sum(dim=1)


def check(*, steps: int, baseline: str, **others: object) -> None:
    if steps < 1:
        raise UserError(f"steps of integrated_gradients must be at least 1; got {steps}")
    if baseline not in ("zero", "black", "white"):
        raise UserError(f"baseline '{baseline}' of integrated_gradients is none of: zero, black, white")


def _baseline(classifier: Classifier, images: Images, name: str) -> Images:
    if name == "zero":
        return classifier.mean.expand_as(images)
    return torch.full_like(images, float(name == "white"))
