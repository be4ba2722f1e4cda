"""Hooks that a caller left on the backward passes of a network's modules.

torch gives a module with such a hook views of its inputs and outputs, which in-place operations refuse. So these hooks
wait while maps are made. To one that only looks at gradients this makes no difference. One that changes them is
refused: the gradients would not be those of the logits.
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
    """A dict of hooks, which is empty for the time being: what it held, and how many contexts it waits for."""

    place: Hooks
    hooks: Hooks = field(default_factory=dict)
    contexts: int = 0


_waiting: dict[int, _Waiting] = {}  # by the id of the dict


@contextmanager
def without_backward_hooks(modules: Sequence[nn.Module]) -> Iterator[None]:
    """Take the hooks on backward passes away, and put them back when the last context around these modules ends.

    A hook that is added inside, as by an explainer, is called. One thread at a time may be inside.
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
    """Raise UserError if a hook that waits gives other gradients than it gets, naming its module.

    Each hook is called once, with noise in the place of gradients.

    Args:
        network: The network, inside `without_backward_hooks`.
        name: Its name, for messages.
        images: Images that it takes; the first is passed through it.
    """
    if not any(waiting.hooks for waiting in _waiting.values()):
        return
    hooked = [module for module in network.modules() if any(_hooks_of(module))]
    names = {module: key for key, module in network.named_modules()}

    def check(module: nn.Module, inputs: Any, output: Any) -> None:
        """Call the hooks of a module."""
        leaving, arriving = _noise(inputs), _noise(output)
        before, after = _hooks_of(module)
        results = [(hook(module, arriving), arriving) for hook in before]
        results += [(hook(module, leaving, arriving), leaving) for hook in after]
        for result, given in results:
            if result is not None and any(a is not b for a, b in zip(_tuple(result), given, strict=False)):
                raise UserError(
                    f"a backward hook on the layer {names[module] or type(module).__name__} of {name} changes "
                    "gradients, so that they are not those of its logits; remove the hook, or set it inside an "
                    "explainer of your own"
                )

    with ExitStack() as handles, torch.no_grad():
        for module in hooked:
            if not isinstance(module, torch.jit.ScriptModule):  # which takes no hooks
                handles.callback(module.register_forward_hook(check).remove)
        network(images[:1])


def _places(module: nn.Module) -> list[Hooks]:
    """Return the dicts that hold a module's hooks: before its own backward pass, and after it."""
    return [module._backward_pre_hooks, module._backward_hooks]


def _places_of_every_module() -> list[Hooks]:
    """Return the dicts of the hooks that torch calls for every module."""
    return [every_module._global_backward_pre_hooks, every_module._global_backward_hooks]


def _hooks_of(module: nn.Module) -> list[list[Callable[..., Any]]]:
    """Return a module's hooks that wait: before its own backward pass, and after it."""
    pairs = zip(_places_of_every_module(), _places(module), strict=True)
    return [[hook for place in pair for hook in _waiting[id(place)].hooks.values()] for pair in pairs]


def _noise(values: Any) -> tuple[Tensor | None, ...]:
    """Return noise of the shapes of a module's inputs or outputs, None for what is no tensor."""
    generator = torch.Generator().manual_seed(0)
    return tuple(
        torch.randn(value.shape, generator=generator).to(value) if isinstance(value, Tensor) else None
        for value in _tuple(values)
    )


def _tuple(values: Any) -> tuple:
    """Return a tuple of what is given as one or as a single value."""
    return values if isinstance(values, tuple) else (values,)
