"""What a map is to explain: weights over the logits, so that score = (logits * target).sum(1).

Every builder returns float32. `one_hot` and `contrast` give one row per sample, group builders (1, K), which stands for
every sample. `reduction="mean"` divides each side by its size; with the default sums, "one class against a group" does
not cancel a shift common to all logits.
"""

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

from saliency_bench.errors import UserError
from saliency_bench.types import Images, Target


def one_hot(labels: int | Iterable[int] | Tensor, classes: int) -> Target:
    """(B, K): +1 on each sample's class. "Why A?" """
    return _rows(labels, classes)


def contrast(a: int | Iterable[int] | Tensor, b: int | Iterable[int] | Tensor, classes: int) -> Target:
    """(B, K): +1 on A, -1 on B. "Why A, not B?"; A = B gives zeros."""
    return _rows(a, classes) - _rows(b, classes)


def group(members: Iterable[int], classes: int, reduction: str = "sum") -> Target:
    """(1, K): +1 on each member. "Why one of these?" """
    return _side(members, classes, reduction)


def class_vs_group(a: int, members: Iterable[int], classes: int, reduction: str = "sum") -> Target:
    """(1, K): +1 on A, -1 on every other member."""
    others = sorted(set(_indices(members, classes).tolist()) - {int(a)})
    return _rows(a, classes) - (_side(others, classes, reduction) if others else 0)


def group_vs_group(g: Iterable[int], h: Iterable[int], classes: int, reduction: str = "sum") -> Target:
    """(1, K): +1 on each member of G, -1 on each member of H; a class in both cancels under "sum"."""
    return _side(g, classes, reduction) - _side(h, classes, reduction)


def score(logits: Tensor, target: Target, on: str = "logit") -> Tensor:
    """(B,): sum_k w_k logit_k, or with on="probability" sum_k w_k softmax_k.

    Errors: UserError for another `on`, or a target of another number of classes.
    """
    if on not in ("logit", "probability"):
        raise UserError(f"on='{on}' is neither 'logit' nor 'probability'")
    if logits.shape[1] != target.shape[1]:
        raise UserError(f"the target has {target.shape[1]} classes, but the classifier {logits.shape[1]}")
    outputs = logits if on == "logit" else logits.softmax(dim=1)
    return (outputs * target).sum(dim=1)


def no_probabilities(logits: Tensor) -> np.ndarray:
    """Bool (B,): whether logits (B, K) have no softmax: one is NaN or infinity, or all are -infinity.

    A class at -infinity beside others has the probability 0.
    """
    return logits.detach().float().softmax(dim=1).isnan().any(dim=1).cpu().numpy()


def expand(target: Target, images: Images) -> Target:
    """(B, K) of a target with one row per image, or one row for all.

    Errors: UserError for another shape, or weights that are not finite.
    """
    target = torch.as_tensor(target)
    if target.ndim != 2 or len(target) not in (1, len(images)) or target.shape[1] < 2:
        raise UserError(
            f"a target has shape (B, K) or (1, K), here B = {len(images)}; this one has {tuple(target.shape)}: "
            "build it with saliency_bench.targets, say one_hot(labels, K)"
        )
    if not torch.isfinite(target.float()).all():
        raise UserError("the target's weights must be finite")
    return target.to(images.device, torch.float32).expand(len(images), -1)


def _indices(members: int | Iterable[int] | Tensor, classes: int) -> Tensor:
    indices = torch.as_tensor(members if isinstance(members, int | Tensor) else list(members)).flatten().cpu()
    if len(indices) == 0:
        raise UserError("a group needs at least one class")
    if indices.is_floating_point() or indices.min() < 0 or indices.max() >= classes:
        raise UserError(f"classes are whole numbers from 0 to {classes - 1}; got {indices.tolist()[:5]}")
    return indices.long()


def _rows(labels: int | Iterable[int] | Tensor, classes: int) -> Target:
    return torch.nn.functional.one_hot(_indices(labels, classes), classes).float()


def _side(members: Iterable[int], classes: int, reduction: str) -> Target:
    if reduction not in ("sum", "mean"):
        raise UserError(f"reduction='{reduction}' is neither 'sum' nor 'mean'")
    rows = _rows(_indices(members, classes).unique(), classes).sum(0, keepdim=True)
    return rows / rows.sum() if reduction == "mean" else rows
