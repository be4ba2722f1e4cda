"""Integrated gradients (Sundararajan et al., 2017): the gradient averaged along a straight path.

    map = sum over channels of (x - x') * sum_i w_i  d score / d image at x' + a_i (x - x')

x' is the baseline, by default the image that is zero after normalisation. a_i and w_i are the nodes and weights of
Gauss-Legendre quadrature on [0, 1]. The map is complete: it sums to score(x) - score(x'). The sum is exact if the score
along the path is a polynomial of degree below 2 * steps; otherwise it has the error of the quadrature. Li et al. (2020)
evaluate the method in section 2.1.3.
"""

import numpy as np
import torch
from torch import Tensor

from saliency_bench.compute.classifiers.classifier import Classifier
from saliency_bench.declarations import explainer
from saliency_bench.explainers._checks import check_batch_size, check_count
from saliency_bench.explainers._fills import Fill, filled
from saliency_bench.explainers._gradients import summed_gradients
from saliency_bench.types import Images, Maps, On, Target


def check(*, steps: int, batch_size: int | None, **others: object) -> None:
    """Raise UserError if an option is out of range."""
    check_count("integrated_gradients", "steps", steps)
    check_batch_size("integrated_gradients", batch_size)


@explainer(
    version=1,
    needs="gradients",
    passes=lambda options, *_: options["steps"],
    signed=True,
    check=check,
    also_called=("ig",),
    elsewhere=(
        ("captum", "captum.attr.IntegratedGradients(model).attribute(x, target=label, n_steps={steps}).sum(1)"),
    ),
)
def integrated_gradients(
    classifier: Classifier,
    images: Images,
    target: Target,
    *,
    steps: int = 50,
    baseline: Fill = "zero",
    on: On = "logit",
    batch_size: int | None = None,
) -> Maps:
    """Return the gradient averaged along a straight path from a baseline to the image, times image minus baseline.

    Args:
        classifier: Network to explain.
        images: Images of shape (B, 3, H, W) with values in [0, 1].
        target: Weights over the logits, of shape (B, K).
        steps: Number of points on the path.
        baseline: Start of the path: "zero" (after normalisation), "black" or "white" (in [0, 1]), or "blur" (the image
            blurred by a Gaussian of 11 x 11 pixels with sigma 5).
        on: Whether the target's weights apply to logits ("logit") or to probabilities ("probability").
        batch_size: Number of path points per batch. None: for images of 224 x 224 pixels, 10 on a CPU and 256 on a GPU.

    Returns:
        Signed maps of shape (B, H, W).

    Raises:
        UserError: steps or batch_size is below 1.
    """
    check(steps=steps, batch_size=batch_size)
    start = filled(classifier, images, baseline)
    way = images - start
    nodes, weights = np.polynomial.legendre.leggauss(steps)  # on [-1, 1]
    places = torch.from_numpy((nodes + 1) / 2).to(images).view(-1, 1, 1, 1)
    factors = torch.from_numpy(weights / 2).to(images).view(-1, 1, 1, 1)

    def on_path(image: Tensor, step: Tensor) -> tuple[Tensor, Tensor]:
        """Return the points on the paths and the weights of their gradients."""
        return start[image] + places[step] * way[image], factors[step]

    mean_gradient, _ = summed_gradients(classifier, images, target, on, steps, batch_size, on_path)
    return (way * mean_gradient).sum(dim=1)
