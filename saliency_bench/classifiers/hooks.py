"""Hooks on a network's modules, which live only inside `with`."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor, nn

from saliency_bench.errors import UserError


@contextmanager
def detached_at(module: nn.Module) -> Iterator[list[Tensor]]:
    """Cut the graph at a module's output: gives the list of its outputs, one leaf per call, that take gradients.

    What follows sees a copy, so that an in-place operation behind the module does not overwrite the leaf.
    """
    outputs: list[Tensor] = []

    def cut(module: nn.Module, inputs, output):
        if not isinstance(output, Tensor):
            raise UserError(f"the layer {type(module).__name__} gives {type(output).__name__}, not one tensor")
        outputs.append(output.detach().float().requires_grad_())
        return outputs[-1].to(output.dtype, copy=True)

    handle = module.register_forward_hook(cut)
    try:
        yield outputs
    finally:
        handle.remove()


@contextmanager
def replaced_at(module: nn.Module, value: Tensor) -> Iterator[None]:
    """Put `value` in the place of a module's output: what follows computes on it, with its batch size."""

    def replace(module: nn.Module, inputs, output: Tensor) -> Tensor:
        return value.to(output.dtype, copy=True)

    handle = module.register_forward_hook(replace)
    try:
        yield
    finally:
        handle.remove()
