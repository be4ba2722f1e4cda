"""What a caller set in torch must not reach what is computed: `untouched` is around every call of a network."""

import random
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from threading import Lock, RLock, local
from typing import Any

import numpy as np
import torch
import torch.utils.checkpoint
from torch import nn

from saliency_bench.errors import UserError
from saliency_bench.utils.backward_hooks import without_backward_hooks
from saliency_bench.utils.devices import arithmetic


@contextmanager
def untouched(network: nn.Module | None = None) -> Iterator[None]:
    """Compute as torch does when nobody has set anything, and leave the caller's settings and network as they were.

    It may be nested. Of several threads, one at a time works with a network: all share its hooks and flags, and the
    random generators. Inside:

    - Autocast is off. A classifier's `precision` and a network's own forward may switch it on.
    - Inference mode is off and autograd is on; `torch.no_grad()` goes inside. Detection of anomalies is off.
    - New tensors are float32 and on the CPU, whatever the defaults of dtype and device; a network on another device
      gets the caller's default device as its own (`callers_device`).
    - Products are float32 and cuDNN is deterministic, as `arithmetic` sets.
    - What is compiled runs as it is written: networks, layers and functions (`compiling` is the way back).
    - `torch.utils.checkpoint` calls its function and keeps the activations, so that nothing is computed twice.

    With a network also:

    - It is in evaluation mode, its parameters take no gradients, and its hooks on backward passes wait.
    - Afterwards its modes, flags and gradients, and the states of the global random generators, are as before.

    Deterministic algorithms, kernels of attention and threads stay as the caller set them: they change last bits only.
    Hooks on forward passes and what the network's own forward sets are part of the network.

    Args:
        network: The network that is called; None for work that only ends in calls of one.

    Raises:
        UserError: It is called inside a transform of torch.func, or torch cannot tell its precision, as its older and
            newer names were both used.
    """
    with ExitStack() as inside:
        inside.enter_context(_process())
        inside.enter_context(_thread())
        if network is not None:
            inside.enter_context(_one_at_a_time)
            inside.enter_context(_unchanged(network))
        yield


def compiling() -> Any:
    """Return a context in which compiled functions run compiled again, inside `untouched`."""
    return torch.compiler.set_stance("default")


def callers_device() -> torch.device | None:
    """Return the default device of the caller, outside `untouched`; None if it is the CPU."""
    return getattr(_callers, "device", None)


_callers = local()
_one_at_a_time = RLock()


@contextmanager
def _thread() -> Iterator[None]:
    """Pin what torch keeps for each thread."""
    if getattr(torch._C._functorch, "peek_interpreter_stack", lambda: None)() is not None:
        raise UserError("torch.func (vmap, grad, jvp ...) cannot transform what calls an explainer; call it outside")
    with ExitStack() as inside:
        for kind in ("cpu", "cuda"):
            if torch.is_autocast_enabled(kind):
                inside.enter_context(torch.autocast(kind, enabled=False))
        inside.enter_context(torch.inference_mode(False))
        inside.enter_context(torch.enable_grad())
        device, before = torch.empty(0).device, callers_device()
        if device.type != "cpu":
            _callers.device = device
            inside.callback(setattr, _callers, "device", before)
            inside.enter_context(torch.device("cpu"))
        yield


_lock = Lock()
_inside = 0  # how many `untouched` are open, in all threads
_pins = ExitStack()


@contextmanager
def _process() -> Iterator[None]:
    """Pin what torch keeps for the whole process, from the first that comes in until the last has left."""
    global _inside
    with _lock:
        if not _inside:
            _pins.enter_context(_pinned())
        _inside += 1
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if not _inside:
                _pins.close()


@contextmanager
def _pinned() -> Iterator[None]:
    """Pin the settings of the process."""
    dtype = torch.get_default_dtype()
    with (
        arithmetic(tf32=False),
        torch.autograd.set_detect_anomaly(False),
        _without_checkpoints(),
        ExitStack() as inside,
    ):
        if "torch._dynamo" in sys.modules:  # without it, nothing is compiled
            inside.enter_context(torch.compiler.set_stance("force_eager"))
        torch.set_default_dtype(torch.float32)
        try:
            yield
        finally:
            torch.set_default_dtype(dtype)


class _Plain:
    """Takes the place of `CheckpointFunction`."""

    @staticmethod
    def apply(function: Any, preserve: bool, *inputs: Any) -> Any:
        """Return function(*inputs)."""
        return function(*inputs)


def _nothing(*args: Any, **kwargs: Any) -> Iterator[None]:
    """Do nothing before the function that is checkpointed, nor after it."""
    yield


# What `torch.utils.checkpoint` looks up when it is called, whatever name a library has for it.
_CHECKPOINTS = {
    "CheckpointFunction": _Plain,
    "_checkpoint_without_reentrant_generator": _nothing,
    "_checkpoint_without_reentrant_generator_impl": _nothing,  # of torch 2.13 and later
}


@contextmanager
def _without_checkpoints() -> Iterator[None]:
    """Let checkpointed functions be called as they are."""
    module = torch.utils.checkpoint
    before = {name: getattr(module, name) for name in _CHECKPOINTS if hasattr(module, name)}
    try:
        for name in before:
            setattr(module, name, _CHECKPOINTS[name])
        yield
    finally:
        for name, value in before.items():
            setattr(module, name, value)


@contextmanager
def _unchanged(network: nn.Module) -> Iterator[None]:
    """Pin what belongs to a network, and set it and the random generators back afterwards."""
    training = [(module, module.training) for module in network.modules()]
    required = [(parameter, parameter.requires_grad, parameter.grad) for parameter in network.parameters()]
    states = random.getstate(), np.random.get_state()
    devices = list({p.device.index for p, *_ in required if p.device.type == "cuda"})
    precision = getattr(network, "precision", None)  # of what is computed backwards too; a bare module has none
    try:
        with (
            torch.random.fork_rng(devices=devices),
            arithmetic(precision == "tf32"),
            without_backward_hooks([module for module, _ in training]),
        ):
            if any(mode for _, mode in training):
                network.eval()
            for parameter, flag, _ in required:
                if flag:
                    parameter.requires_grad_(False)
            yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        for module, mode in training:
            if module.training != mode:
                module.training = mode
        for parameter, flag, gradient in required:
            if parameter.requires_grad != flag:
                parameter.requires_grad_(flag)
            if parameter.grad is not gradient:
                parameter.grad = gradient
