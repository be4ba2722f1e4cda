"""Compute derivatives of the score at one or many points. Passes have a fixed size, so memory use is bounded."""

from collections.abc import Callable, Iterator, Sequence
from typing import Literal

import torch
from torch import Tensor

from saliency_bench.compute.classifiers.classifier import Classifier
from saliency_bench.compute.classifiers.cuts import check_gradient
from saliency_bench.compute.classifiers.passes import Pass, in_passes
from saliency_bench.errors import UserError
from saliency_bench.target_weights import score
from saliency_bench.types import Images, Maps, Target

Reduction = Literal["max", "sum"]  # over channels: the largest absolute value, or the signed sum
Points = Callable[[Tensor, Tensor], tuple[Tensor, Tensor | float]]


def derivative(classifier: Classifier, total: Tensor, inputs: Tensor) -> Tensor:
    """Return d total / d inputs, or raise UserError if the network blocks the gradient."""
    return derivatives(classifier, total, [inputs])[0]


def derivatives(classifier: Classifier, total: Tensor, inputs: Sequence[Tensor], keep: bool = False) -> list[Tensor]:
    """Return d total / d x for each x in `inputs`. With `keep`, the graph is kept for later calls.

    Raises:
        UserError: The network blocks the gradient to one of the inputs, or overwrites values that gradients need.
    """
    if not total.requires_grad:
        raise cut(classifier.id)
    try:
        parts = torch.autograd.grad(total, inputs, retain_graph=keep, allow_unused=True)
    except RuntimeError as error:
        if "inplace operation" not in str(error):
            raise
        raise UserError(
            f"{classifier.id} overwrites values that its gradient needs (for example with += or relu_); use an "
            "explainer that needs no gradient, such as rise"
        ) from error
    gradients = [gradient for gradient in parts if gradient is not None]
    if len(gradients) < len(inputs):
        raise cut(classifier.id)
    return gradients


def cut(network: str) -> UserError:
    """Return the error for a network that blocks the gradient."""
    return UserError(
        f"the gradient is cut inside {network} (its `forward` method disables gradients or detaches a tensor); use an "
        "explainer that needs only outputs, such as rise, or, for a vision transformer, attention or rollout"
    )


def gradient_at(classifier: Classifier, points: Images, target: Target, on: str) -> Tensor:
    """Return d score / d image at each point (n, 3, H, W), for target rows (n, K)."""
    check_gradient(classifier, points)
    points = points.detach().requires_grad_()
    return derivative(classifier, score(classifier(points), target, on, classifier).sum(), points)


def summed_gradients(
    classifier: Classifier,
    images: Images,
    target: Target,
    on: str,
    steps: int,
    batch_size: int | None,
    points: Points,
    halves: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Sum factor * gradient for each image, over all steps and over half of the steps. Return both sums (B, 3, H, W).

    The gradient is computed at the point of each step.

    Args:
        classifier: Network to explain.
        images: Images of shape (B, 3, H, W) with values in [0, 1].
        target: Weights over the logits, of shape (B, K).
        on: "logit" or "probability", as in the explainers.
        steps: Number of points per image.
        batch_size: Number of points per batch. None: `pictures_per_pass`.
        points: Function (image indices, step indices), as in `passes.Pass`. It returns the points (n, 3, H, W) and the
            factors of their gradients.
        halves: Steps of the second sum, bool (B, steps). None: the second sum is 0.
    """

    def work(passes: Iterator[Pass]) -> tuple[Tensor, Tensor]:
        total, half = torch.zeros_like(images), torch.zeros_like(images)
        for batch in passes:
            at, factors = points(batch.samples, batch.pictures)
            gradient = factors * gradient_at(classifier, at, target[batch.samples], on)
            of_images = gradient[: batch.count].view(len(batch.images), -1, *images.shape[1:])
            total[batch.images.start : batch.images.stop] += of_images.sum(dim=1)
            if halves is None:
                continue
            chosen = halves[batch.samples, batch.pictures][: batch.count].view(*of_images.shape[:2], 1, 1, 1)
            half[batch.images.start : batch.images.stop] += torch.where(chosen, of_images, 0).sum(dim=1)
        return total, half

    return in_passes(classifier, images, steps, batch_size, work)


def even_steps(images: Images, steps: int) -> Tensor:
    """Return whether the index of each step is even, bool (B, steps)."""
    return (torch.arange(steps, device=images.device) % 2 == 0).expand(len(images), -1)


def over_channels(gradient: Tensor, reduction: Reduction) -> Maps:
    """Reduce (B, 3, H, W) to (B, H, W): the largest absolute value ("max") or the sum ("sum") over channels."""
    return gradient.abs().amax(dim=1) if reduction == "max" else gradient.sum(dim=1)
