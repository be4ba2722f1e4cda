"""Disable backward hooks that a caller has registered on a network's modules.

torch passes views of inputs and outputs to a module with a backward hook, and in-place operations on these views fail.
The hooks are therefore disabled while maps are computed. A hook that only observes gradients does not affect the maps.
A hook that changes gradients is rejected, because the changed gradients are not the gradients of the logits.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as every_module

from saliency_bench.errors import UserError

Hooks = dict[int, Callable[..., Any]]


@dataclass
class _Waiting:
    """The hooks that were removed from a dict, and the number of open contexts that need the dict to be empty."""

    place: Hooks
    hooks: Hooks = field(default_factory=dict)
    contexts: int = 0


_waiting: dict[int, _Waiting] = {}  # {id of the dict of hooks: removed hooks}


@contextmanager
def without_backward_hooks(modules: Sequence[nn.Module]) -> Iterator[None]:
    """Remove the backward hooks of modules, and restore them when the last context for these modules ends.

    Hooks added inside the context, for example by an explainer, are called. Only one thread at a time may enter the
    context.
    """
    places = [place for module in modules for place in _places(module)] + _places_of_every_module()
    for place in places:
        if id(place) not in _waiting:
            _waiting[id(place)] = _Waiting(place, dict(place))
            place.clear()
        _waiting[id(place)].contexts += 1
    try:
        yield
    finally:
        for place in places:
            waiting = _waiting[id(place)]
            waiting.contexts -= 1
            if not waiting.contexts:
                del _waiting[id(place)]
                added = dict(place)
                place.clear()
                place.update(waiting.hooks | added)


def refuse_changed_gradients(network: nn.Module, name: str, images: Tensor) -> None:
    """Raise UserError if a disabled hook changes the gradients that it receives. The message names the hook's module.

    Each hook is called once, with noise instead of gradients.

    Args:
        network: Network with hooks that `without_backward_hooks` has disabled.
        name: Name of the network, for messages.
        images: Batch of images for the network. Only the first image is used.
    """
    if not any(waiting.hooks for waiting in _waiting.values()):
        return
    hooked = [module for module in network.modules() if any(_hooks_of(module))]
    names = {module: key for key, module in network.named_modules()}

    def check(module: nn.Module, inputs: Any, output: Any) -> None:
        leaving, arriving = _noise(inputs), _noise(output)
        before, after = _hooks_of(module)
        results = [(hook(module, arriving), arriving) for hook in before]
        results += [(hook(module, leaving, arriving), leaving) for hook in after]
        for result, given in results:
            if result is not None and any(a is not b for a, b in zip(_tuple(result), given, strict=False)):
                raise UserError(
                    f"a backward hook on the layer {names[module] or type(module).__name__} of {name} changes "
                    "gradients, so they are not the gradients of its logits; remove the hook, or register it inside "
                    "your own explainer"
                )

    with ExitStack() as handles, torch.no_grad():
        for module in hooked:
            if not isinstance(module, torch.jit.ScriptModule):  # a ScriptModule accepts no hooks
                handles.callback(module.register_forward_hook(check).remove)
        network(images[:1])


def _places(module: nn.Module) -> list[Hooks]:
    """Return a module's two dicts of hooks: those called before its backward pass, and those called after the pass."""
    return [module._backward_pre_hooks, module._backward_hooks]


def _places_of_every_module() -> list[Hooks]:
    """Return the two dicts of global backward hooks, which torch calls for every module."""
    return [every_module._global_backward_pre_hooks, every_module._global_backward_hooks]


def _hooks_of(module: nn.Module) -> list[list[Callable[..., Any]]]:
    """Return two lists of a module's disabled hooks.

    torch would call the hooks in the first list before the module's backward pass, and the hooks in the second list
    after the pass.
    """
    pairs = zip(_places_of_every_module(), _places(module), strict=True)
    return [[hook for place in pair for hook in _waiting[id(place)].hooks.values()] for pair in pairs]


def _noise(values: Any) -> tuple[Tensor | None, ...]:
    """Return noise tensors with the shapes of a module's inputs or outputs. Values that are not tensors become None."""
    generator = torch.Generator().manual_seed(0)
    return tuple(
        torch.randn(value.shape, generator=generator).to(value) if isinstance(value, Tensor) else None
        for value in _tuple(values)
    )


def _tuple(values: Any) -> tuple:
    return values if isinstance(values, tuple) else (values,)
