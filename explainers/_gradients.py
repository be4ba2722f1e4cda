"""Derivatives of the score, at one point or many, in passes of a fixed size: memory does not grow with the points."""

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from saliency_bench.classifiers.classifier import Classifier
from saliency_bench.errors import UserError
from saliency_bench.target import score
from saliency_bench.types import Images, Maps, Target

PIXELS_PER_PASS = 2**19  # 10 images of 224 x 224: enough to fill the device, little enough to stay in memory

Reduction = Literal["max", "sum"]  # over channels: the largest absolute value, or the signed sum
Points = Callable[[Tensor, Tensor], tuple[Tensor, Tensor | float]]


def derivative(classifier: Classifier, total: Tensor, inputs: Tensor) -> Tensor:
    """d total / d inputs. Raises: UserError for a network that lets no gradient through."""
    gradient = torch.autograd.grad(total, inputs, allow_unused=True)[0] if total.requires_grad else None
    if gradient is None:
        raise UserError(
            f"no gradient comes back through {classifier.id} (its forward switches gradients off or detaches); "
            "use an explainer that only looks at outputs, say rise"
        )
    return gradient


def gradient_at(classifier: Classifier, points: Images, target: Target, on: str) -> Tensor:
    """(n, 3, H, W): d score / d image at each point (n, 3, H, W), for target rows (n, K)."""
    points = points.detach().requires_grad_()
    return derivative(classifier, score(classifier(points), target, on, classifier).sum(), points)


def summed_gradients(
    classifier: Classifier, images: Images, target: Target, on: str, steps: int, batch_size: int | None, points: Points
) -> Tensor:
    """(B, 3, H, W): for each image the sum over its steps of factor * gradient at the step's point.

    `points(image, step)` takes the numbers of images and steps, both (n,), and gives the points (n, 3, H, W) and their
    factors. Images and steps share a pass: image after image, `batch_size` points at a time, None: PIXELS_PER_PASS.
    """
    size = points_per_pass(images, batch_size)
    total = torch.zeros_like(images)
    count = len(images) * steps
    for start in range(0, count, size):
        stop = min(start + size, count)
        numbers = torch.arange(start, stop, device=images.device)
        image, step = numbers // steps, numbers % steps
        at, factors = points(image, step)
        weighted = factors * gradient_at(classifier, at, target[image], on)
        for index in range(start // steps, (stop - 1) // steps + 1):
            total[index] += weighted[max(index * steps - start, 0) : (index + 1) * steps - start].sum(dim=0)
    return total


def points_per_pass(images: Images, batch_size: int | None) -> int:
    return batch_size or max(1, PIXELS_PER_PASS // images[0, 0].numel())


def over_channels(gradient: Tensor, reduction: Reduction) -> Maps:
    """(B, H, W) of (B, 3, H, W): the largest absolute value of a pixel's channels ("max"), or their sum ("sum")."""
    return gradient.abs().amax(dim=1) if reduction == "max" else gradient.sum(dim=1)
