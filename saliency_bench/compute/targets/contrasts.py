"""Build targets of several classes: contrasts and groups.

`reduction="mean"` divides the weights of each group by its size. With the default, "sum", a constant added to all
logits does not cancel in "one class against a group".
"""

from collections.abc import Iterable

from torch import Tensor

from saliency_bench.errors import UserError
from saliency_bench.target_weights import class_indices, class_rows
from saliency_bench.types import Target


def contrast(a: int | Iterable[int] | Tensor, b: int | Iterable[int] | Tensor, classes: int) -> Target:
    """Return weights (B, K) for "Why A, not B?": +1 on A and -1 on B, or zeros if A = B."""
    return class_rows(a, classes) - class_rows(b, classes)


def group(members: Iterable[int], classes: int, reduction: str = "sum") -> Target:
    """Return weights (1, K) for "Why one of these?": +1 on each member."""
    return _side(members, classes, reduction)


def class_vs_group(a: int, members: Iterable[int], classes: int, reduction: str = "sum") -> Target:
    """Return weights (1, K): +1 on A, -1 on every other member of the group."""
    others = sorted(set(class_indices(members, classes).tolist()) - {int(a)})
    return class_rows(a, classes) - (_side(others, classes, reduction) if others else 0)


def group_vs_group(g: Iterable[int], h: Iterable[int], classes: int, reduction: str = "sum") -> Target:
    """Return weights (1, K): +1 on members of G, -1 on members of H. With "sum", a class in both groups cancels."""
    return _side(g, classes, reduction) - _side(h, classes, reduction)


def _side(members: Iterable[int], classes: int, reduction: str) -> Target:
    """Return weights (1, K): +1 on each member, or equal shares of 1 for the reduction "mean"."""
    if reduction not in ("sum", "mean"):
        raise UserError(f"reduction='{reduction}' is neither 'sum' nor 'mean'")
    rows = class_rows(class_indices(members, classes).unique(), classes).sum(0, keepdim=True)
    return rows / rows.sum() if reduction == "mean" else rows
