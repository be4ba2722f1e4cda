"""Isolate results from the caller's torch settings. Every call of a network runs inside `untouched`."""

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
    """Use torch's default settings inside the context, and restore the caller's settings and network afterwards.

    Contexts may be nested. Only one thread at a time may use a network, because threads share its hooks, its flags and
    the random generators. Inside the context:

    - Autocast is off. A classifier's `precision` and a network's own forward may switch it on.
    - Inference mode is off and autograd is on, so use `torch.no_grad()` where needed. Anomaly detection is off.
    - New tensors are float32 and on the CPU, regardless of the default dtype and device. A network on another device
      gets the caller's default device (`callers_device`).
    - Matrix products are computed in float32 and cuDNN is deterministic, as set by `arithmetic`.
    - Compiled networks, layers and functions run uncompiled, except inside `compiling`.
    - `torch.utils.checkpoint` calls its function directly and stores the activations, so no activation is computed
      twice.
    - Torch's module trackers, as used by `FlopCounterMode`, are off, because their hooks fail in `autograd.grad`.

    If a network is passed:

    - The network is in evaluation mode, its parameters require no gradients, and its backward hooks are disabled.
    - Afterwards, its modes, flags and gradients are restored, and the states of the global random generators of
      Python, NumPy, the CPU and the GPUs of the network.

    Deterministic algorithms, attention kernels and threads remain as set by the caller, because they change only the
    last bits. Forward hooks, and settings that the network's own forward changes, are part of the network.

    Args:
        network: Network to call, or None for code that passes its networks to an inner context.

    Raises:
        UserError: The call is inside a transform of torch.func, or torch's precision is ambiguous because both its old
            and its new settings were used.
    """
    with ExitStack() as inside:
        inside.enter_context(_process())
        inside.enter_context(_thread())
        if network is not None:
            inside.enter_context(_one_at_a_time)
            inside.enter_context(_unchanged(network))
        yield


def reset_generators(network: nn.Module) -> None:
    """Seed the generators that `untouched(network)` restores, so that a network repeats its random numbers.

    `torch.manual_seed` would also seed the generators of all other GPUs.
    """
    torch.default_generator.manual_seed(0)
    for index in _gpus_of(network):
        torch.cuda.default_generators[index].manual_seed(0)


def compiling() -> Any:
    """Return a context for use inside `untouched` in which compiled functions run compiled."""
    return torch.compiler.set_stance("default")


def callers_device() -> torch.device | None:
    """Return the default device that the caller set outside `untouched`, or None for the CPU."""
    return getattr(_callers, "device", None)


_callers = local()
_one_at_a_time = RLock()


@contextmanager
def _thread() -> Iterator[None]:
    """Pin torch's per-thread settings."""
    if getattr(torch._C._functorch, "peek_interpreter_stack", lambda: None)() is not None:
        raise UserError(
            "torch.func (vmap, grad, jvp ...) cannot transform a call of an explainer; call the explainer outside the "
            "transform"
        )
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


TRACKERS = {"ModuleTracker", "ModTracker"}
_lock = Lock()
_inside = 0  # number of open `untouched` contexts, in all threads
_pins = ExitStack()


@contextmanager
def _process() -> Iterator[None]:
    """Pin torch's per-process settings from when the first thread enters this context until the last one leaves."""
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
    dtype = torch.get_default_dtype()
    with (
        arithmetic(tf32=False),
        torch.autograd.set_detect_anomaly(False),
        _without_checkpoints(),
        _without_trackers(),
        ExitStack() as inside,
    ):
        if "torch._dynamo" in sys.modules:  # otherwise no function is compiled
            inside.enter_context(torch.compiler.set_stance("force_eager"))
        torch.set_default_dtype(torch.float32)
        try:
            yield
        finally:
            torch.set_default_dtype(dtype)


class _Plain:
    """Replacement for `CheckpointFunction` that calls the function directly."""

    @staticmethod
    def apply(function: Any, preserve: bool, *inputs: Any) -> Any:
        return function(*inputs)


def _nothing(*args: Any, **kwargs: Any) -> Iterator[None]:
    """Run the checkpointed function without any extra step before or after it."""
    yield


# Functions that `torch.utils.checkpoint` looks up by name when it is called, even under an alias.
_CHECKPOINTS = {
    "CheckpointFunction": _Plain,
    "_checkpoint_without_reentrant_generator": _nothing,
    "_checkpoint_without_reentrant_generator_impl": _nothing,  # in torch 2.13 and later
}


@contextmanager
def _without_checkpoints() -> Iterator[None]:
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
def _without_trackers() -> Iterator[None]:
    """Remove the global hooks of torch's module trackers (`TRACKERS`), and restore them at the end."""
    removed = []
    for hooks in (torch.nn.modules.module._global_forward_pre_hooks, torch.nn.modules.module._global_forward_hooks):
        for key, hook in list(hooks.items()):
            if type(getattr(hook, "__self__", None)).__name__ in TRACKERS:
                removed.append((hooks, key, hooks.pop(key)))
    try:
        yield
    finally:
        for hooks, key, hook in removed:
            hooks[key] = hook


@contextmanager
def _unchanged(network: nn.Module) -> Iterator[None]:
    """Pin the settings of a network, and restore them and the random generators afterwards."""
    training = [(module, module.training) for module in network.modules()]
    required = [(parameter, parameter.requires_grad, parameter.grad) for parameter in network.parameters()]
    states = random.getstate(), np.random.get_state()
    precision = getattr(network, "precision", None)  # plain modules lack it
    try:
        with (
            torch.random.fork_rng(devices=_gpus_of(network)),
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


def _gpus_of(network: nn.Module) -> list[int]:
    return sorted({parameter.device.index for parameter in network.parameters() if parameter.device.type == "cuda"})
