"""Shared code of explainers that follow attention through the blocks.

Matrices have the shape (B, T, T) over the tokens. Products R are stored as R - I, because small values would be lost to
rounding next to the ones on the diagonal. At the patches, the row of a class token is the same in R and R - I.
"""

from collections.abc import Iterable

import torch
from torch import Tensor

from saliency_bench.errors import UserError


def check_start(name: str, start: int) -> None:
    """Raise UserError if the index of the first block is below 0."""
    if start < 0:
        raise UserError(f"start of {name} must be the index of a block, at least 0; got {start}")


def product(steps: Iterable[Tensor]) -> Tensor:
    """Return (I + S_n) ... (I + S_1) (I + S_0) - I."""
    joint: Tensor | None = None
    for step in steps:
        joint = step if joint is None else joint + step + step @ joint
    assert joint is not None
    return joint


def by_row(matrix: Tensor) -> Tensor:
    """Return N - I. N is `matrix` + I with each row divided by the row's sum."""
    total = matrix.sum(dim=-1, keepdim=True)
    return (matrix - torch.diag_embed(total[..., 0])) / (1 + total)


def positive(gradient: Tensor, matrix: Tensor) -> Tensor:
    """Return the mean over heads of relu(gradient x matrix), both (B, heads, T, T)."""
    return (gradient.float() * matrix.detach().float()).relu().mean(dim=1)


def signed(gradient: Tensor, matrix: Tensor) -> Tensor:
    """Return the mean over heads of gradient x matrix, both (B, heads, T, T)."""
    return (gradient.float() * matrix.detach().float()).mean(dim=1)
