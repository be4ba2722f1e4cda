"""Hooks on a network's modules, which live only inside `with`."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from saliency_bench.errors import UserError


@contextmanager
def detached_at(module: nn.Module) -> Iterator[list[Tensor]]:
    """Cut the graph at a module's output: yields the list of its outputs, one leaf per call, which receive gradients.

    Later modules get a copy, so that an in-place operation after the module does not overwrite the leaf.
    """
    outputs: list[Tensor] = []

    def cut(module: nn.Module, inputs: Any, output: Any) -> Tensor:
        if not isinstance(output, Tensor):
            raise UserError(
                f"the layer {type(module).__name__} returns {type(output).__name__}, not a tensor; name another layer"
            )
        outputs.append(output.detach().float().requires_grad_())
        return outputs[-1].to(output.dtype, copy=True)

    handle = module.register_forward_hook(cut)
    try:
        yield outputs
    finally:
        handle.remove()


@contextmanager
def replaced_at(module: nn.Module, value: Tensor) -> Iterator[None]:
    """Replace a module's output by `value`: later modules compute on it, with its batch size."""

    def replace(module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
        return value.to(output.dtype, copy=True)

    handle = module.register_forward_hook(replace)
    try:
        yield
    finally:
        handle.remove()
