"""Targets that maps explain: weights over the logits, with score = (logits * target).sum(1).

Contrasts and groups of classes are in `saliency_bench.compute.targets`. This module does not import torch, because it
is also used when results are only read.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from saliency_bench.errors import UserError, unknown

if TYPE_CHECKING:
    from torch import Tensor

    from saliency_bench.types import Images, Target

ACTIVATIONS = ("softmax", "sigmoid")  # choices for users
BINARY = "binary"  # sigmoid of a single logit: two mutually exclusive classes, see `two_classes`


@dataclass(frozen=True)
class TargetRange:
    """Range of a target's value, which is a weighted sum of class probabilities, over all images.

    With a softmax, the probabilities of all classes sum to 1. With a sigmoid, each probability may be 1.

    Attributes:
        low: Minimum possible value of sum_k w_k p_k.
        high: Maximum possible value of sum_k w_k p_k.
        a: Maximum possible value of p_A, the summed probability of the classes with a positive weight. 0 if there are
            none.
        b: Maximum possible value of p_B, the summed probability of the classes with a negative weight. 0 if there are
            none.
    """

    low: float
    high: float
    a: float
    b: float

    @classmethod
    def of_classes(cls, plus: int, minus: int, activation: str = "softmax") -> TargetRange:
        """Return the range of targets with weight +1 on up to `plus` classes and -1 on up to `minus` classes."""
        a, b = (float(count if activation == "sigmoid" else min(count, 1)) for count in (plus, minus))
        return cls(0 - b, a, a, b)  # 0 - b avoids -0.0

    @classmethod
    def of_weights(cls, weights: np.ndarray, activation: str = "softmax") -> TargetRange:
        """Return the range of targets (B, K) with arbitrary weights."""
        # A softmax is extreme if one class has all probability, a sigmoid if all classes of one sign have p = 1.
        sides = np.maximum(weights, 0), np.maximum(-weights, 0)
        together = np.sum if activation == "sigmoid" else np.max
        high, low = (float(together(side, axis=1).max()) for side in sides)
        a, b = (float(together(side > 0, axis=1).max()) for side in sides)
        return cls(0 - low, high, a, b)


PLAIN_CONTRAST = TargetRange.of_classes(1, 1)


def one_hot(labels: int | Iterable[int] | Tensor, classes: int) -> Target:
    """Return targets (B, K) with +1 on each sample's class. They answer the question "why A?"."""
    return class_rows(labels, classes)


def activation_of(classifier: object) -> str:
    """Return the activation that turns the logits of a classifier into probabilities.

    Returns:
        "softmax" if the classes are mutually exclusive, or if the module declares no activation; "sigmoid" if the
        classes are independent, as in multi-label heads; "binary" for the two classes of a single logit.
    """
    return getattr(classifier, "activation", "softmax")


def probabilities(logits: Tensor, activation: str = "softmax") -> Tensor:
    """Convert logits (B, K) to probabilities (B, K) with a classifier's activation.

    Raises:
        UserError: The activation is unknown, or it is a softmax of a single logit, which is always 1.
    """
    if activation not in (*ACTIVATIONS, BINARY):
        raise unknown("activation", activation, ACTIVATIONS)
    if activation != "softmax":
        return logits.sigmoid()
    if logits.shape[1] < 2:
        raise UserError("the softmax of one logit is always 1; load the classifier with activation='sigmoid'")
    return logits.softmax(dim=1)


def asked_activation(activation: str) -> str:
    """Return the value of the `activation` setting that selects this activation."""
    return "sigmoid" if activation == BINARY else activation


def two_classes(logit: Tensor) -> Tensor:
    """Convert a single logit z (B, 1) to the logits [-z, z], (B, 2), of the network's two classes.

    Their probabilities are sigmoid(-z) = 1 - sigmoid(z) and sigmoid(z). A map of class 0 therefore explains the weight
    -1 on z.
    """
    import torch

    # Explainers with a rule for each operation must not intercept this operation, which is not part of the network.
    with torch._C.DisableTorchFunction():
        return torch.cat([-logit, logit], dim=1)


def two_weights(weight: Tensor) -> Target:
    """Convert weights (B, 1) on a single logit to non-negative weights (B, 2) on its two classes."""
    import torch

    return torch.cat([(-weight).clamp(min=0), weight.clamp(min=0)], dim=1)


def score(logits: Tensor, target: Target, on: str = "logit", classifier: object = None) -> Tensor:
    """Return the scores sum_k w_k logit_k or sum_k w_k p_k, of shape (B,).

    Args:
        logits: Logits of shape (B, K).
        target: Weights w of shape (B, K) or (1, K).
        on: "logit" or "probability".
        classifier: Network that returned the logits. Its activation turns them into probabilities.

    Raises:
        UserError: `on` is invalid, or the target and the logits differ in the number of classes.
    """
    if on not in ("logit", "probability"):
        raise UserError(f"on='{on}' is unknown; use 'logit' or 'probability'")
    if logits.shape[1] != target.shape[1]:
        raise UserError(f"the target has {target.shape[1]} classes, but the classifier has {logits.shape[1]}"
                        + " (a single logit has two classes)" * (target.shape[1] == 1))  # fmt: skip
    outputs = logits if on == "logit" else probabilities(logits, activation_of(classifier))
    # A masked-out class has a logit of -infinity, and 0 times infinity is NaN.
    return (outputs.masked_fill((target == 0) & outputs.isneginf(), 0) * target).sum(dim=1)


def weighs_infinite(logits: Tensor, target: Target) -> np.ndarray:
    """Return whether each target has a weight on an infinite logit (such as a masked-out class), bool (B,)."""
    return (logits.isinf() & (target.to(logits.device) != 0)).any(dim=1).cpu().numpy()


def no_probabilities(logits: Tensor, activation: str = "softmax") -> np.ndarray:
    """Return whether each row of logits (B, K) has undefined probabilities, bool (B,).

    A softmax is undefined if a logit is NaN or infinity, or if all logits are -infinity. A single class at -infinity
    has the probability 0. A sigmoid is undefined only for NaN.
    """
    return probabilities(logits.detach().float(), activation).isnan().any(dim=1).cpu().numpy()


def recognised(p: np.ndarray, right: np.ndarray, activation: str = "softmax") -> np.ndarray:
    """Return, for each sample, whether the classifier is right, bool (...).

    With a softmax, the classifier is right if its top class (the lowest index in a tie) is correct. With a sigmoid, it
    is right if a correct class has p > 0.5.

    Args:
        p: Probabilities of shape (..., K).
        right: Correct classes, bool (..., K).
        activation: "softmax" or "sigmoid".
    """
    if activation == "sigmoid":
        return ((p > 0.5) & right).any(axis=-1)
    top = p.argmax(axis=-1)[..., None]
    return np.take_along_axis(np.broadcast_to(right, p.shape), top, axis=-1)[..., 0]


def expand(target: Target, images: Images) -> Target:
    """Expand a target, which has one row per image or a single row for all images, to (B, K).

    Raises:
        UserError: The shape of the target is wrong, or its weights are not finite.
    """
    import torch

    target = torch.as_tensor(target)
    if target.ndim != 2 or len(target) not in (1, len(images)) or target.shape[1] < 1:
        raise UserError(
            f"a target must have shape (B, K) or (1, K), here B = {len(images)}; this target has shape "
            f"{tuple(target.shape)}; build it with saliency_bench.compute.targets, for example one_hot(labels, K)"
        )
    if not torch.isfinite(target.float()).all():
        raise UserError("the target's weights must be finite")
    return target.to(images.device, torch.float32).expand(len(images), -1)


def class_indices(members: int | Iterable[int] | Tensor, classes: int) -> Tensor:
    """Return the indices of a class or of the classes in a group, int (n,).

    Raises:
        UserError: The group is empty, or an index is not below `classes`.
    """
    import torch

    indices = torch.as_tensor(members if isinstance(members, int | torch.Tensor) else list(members)).flatten().cpu()
    if len(indices) == 0:
        raise UserError("a group needs at least one class")
    if indices.is_floating_point() or indices.min() < 0 or indices.max() >= classes:
        raise UserError(f"classes must be whole numbers from 0 to {classes - 1}; got {indices.tolist()[:5]}")
    return indices.long()


def class_rows(labels: int | Iterable[int] | Tensor, classes: int) -> Target:
    """Return, for each label, a one-hot row of length `classes`."""
    import torch

    return torch.nn.functional.one_hot(class_indices(labels, classes), classes).float()
