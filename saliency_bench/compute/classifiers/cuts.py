"""Test whether all image evidence passes through a layer (a full cut), and whether gradients miss a part of a network.

Grad-CAM and similar methods show the evidence in the output of a layer. In a chain of layers, this is all the evidence.
Some evidence is missing if a branch bypasses the layer, or if the network runs the layer on several views of the image.
The test checks whether the logits still depend on the image while the layer's last output is held fixed.

Gradients miss everything that `forward` computes under `no_grad` or detaches. The test checks whether the gradient
changes if autograd also follows these parts.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from saliency_bench.compute.classifiers.classifier import Classifier
from saliency_bench.errors import UserError
from saliency_bench.types import Images
from saliency_bench.utils.devices import is_out_of_memory
from saliency_bench.utils.messages import complain
from saliency_bench.utils.seeds import seed_of, uniform
from saliency_bench.utils.untouched import reset_generators, untouched

TOLERANCE = 1e-4  # relative to the largest logit, because a GPU may choose different algorithms for the two passes
CHANGE = 1e-3  # relative to the norm of the gradient, for the same reason


def is_full_cut(classifier: Classifier, image: Images, module: nn.Module, runs: int) -> bool:
    """Return whether the logits are independent of the image while a module's last output is held fixed.

    Two images are passed through the network. In the second pass, the module returns its output for the first image.
    The logits of both passes must be equal and must have no gradient with respect to either image. Comparing values
    alone would miss effects that are small relative to large logits. Checking gradients alone would miss parts that are
    computed without gradients (a frozen branch).

    Args:
        classifier: The network.
        image: One image (1, 3, H, W).
        module: A module of the network.
        runs: Number of calls of the module in a forward pass.
    """
    noise = torch.from_numpy(uniform(seed_of("full cut"), image.numel())).view_as(image).to(image)
    kept: list[Tensor] = []
    with untouched(classifier), classifier.uncounted():
        logits = [_logits(classifier, picture, module, runs, kept) for picture in (image, (image + noise) / 2)]
    first, second = logits
    if first is None or second is None:
        return False
    largest = first.nan_to_num(0, 0, 0).abs().max().item()
    return torch.allclose(first, second, rtol=0, atol=TOLERANCE * largest, equal_nan=True)


def _logits(classifier: Classifier, image: Images, module: nn.Module, runs: int, kept: list[Tensor]) -> Tensor | None:
    """Return the logits with the module's last output held fixed, or None if they have a gradient at the image.

    The result is also None if the number of calls of the module depends on the image.
    """
    inputs = image.clone().requires_grad_()
    for is_recording in (True, False):
        with torch.set_grad_enabled(is_recording), _last_output_held(module, runs, kept) as calls:
            reset_generators(classifier)
            try:
                logits = classifier(inputs if is_recording else image)
                count = len(calls)
                gradient = _gradient(logits, inputs)
            except (UserError, RuntimeError) as error:  # no gradients are possible: NumPy, or in-place changes
                if not is_recording or is_out_of_memory(error):
                    raise
                continue
        is_cut = count == runs and (gradient is None or bool((gradient == 0).all()))
        return logits.detach() if is_cut else None
    raise AssertionError


def _gradient(logits: Tensor, inputs: Images) -> Tensor | None:
    """Return the gradient of a weighted sum of logits, or None if there is none. The weights prevent cancellation."""
    if not logits.requires_grad:
        return None
    weights = torch.arange(1, logits.shape[1] + 1, device=logits.device).cos().expand_as(logits)
    return torch.autograd.grad(logits, inputs, weights, allow_unused=True)[0]


@contextmanager
def _last_output_held(module: nn.Module, runs: int, kept: list[Tensor]) -> Iterator[list[None]]:
    """Hold the output of a module's last call fixed, and yield a list that grows by one entry per call.

    The output is replaced by the tensor in `kept`; if `kept` is empty, the output is stored in `kept`.
    """
    calls: list[None] = []

    def hold(module: nn.Module, inputs: object, output: Tensor) -> Tensor | None:
        """Return the replacement of the last output, or None to leave earlier outputs unchanged."""
        calls.append(None)
        if len(calls) != runs:
            return None
        if not kept:
            kept.append(output.detach().clone())
        return kept[0].clone()  # later operations may write to it

    handle = module.register_forward_hook(hold, prepend=True)  # before the network's hooks, which may use the output
    try:
        yield calls
    finally:
        handle.remove()


class Uncut(TorchFunctionMode):
    """Context manager that computes gradients even where a network disables them or detaches a tensor."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return call_uncut(function, args, kwargs or {})


def call_uncut(function: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """Call a torch function with autograd enabled. A function that would detach its input returns it unchanged."""
    if function in (torch.detach, Tensor.detach) or getattr(function, "__self__", None) is Tensor.data:
        return args[0].view_as(args[0])
    if function is Tensor.detach_:
        return args[0]
    if function in (Tensor.numpy, Tensor.__array__):
        args = (args[0].detach(), *args[1:])
    with torch.inference_mode(False), torch.enable_grad():
        return function(*args, **kwargs)


_partial: WeakKeyDictionary[Classifier, dict[tuple, bool]] = WeakKeyDictionary()  # results of `is_gradient_partial`
_named: WeakSet[Classifier] = WeakSet()  # classifiers whose message was printed


def check_gradient(classifier: Classifier, images: Images, module: nn.Module | None = None) -> None:
    """Print a message, once per network, if the gradient misses part of the network.

    Args:
        classifier: The network.
        images: Images (B, 3, H, W).
        module: The gradients are taken with respect to the last output of this module. If it is None, they are taken
            with respect to the images.
    """
    if classifier not in _named and is_gradient_partial(classifier, images[:1], module):
        _named.add(classifier)
        complain(
            f"{classifier.id} computes part of its forward pass without gradients (no_grad or detach), so "
            "gradient-based maps miss that part; use occlusion or rise to cover the whole network"
        )


def is_gradient_partial(classifier: Classifier, image: Images, module: nn.Module | None = None) -> bool:
    """Return whether the gradient misses part of the network. False if there is no gradient at all.

    The result is cached per image size and module.

    Args:
        classifier: The network.
        image: One image (1, 3, H, W).
        module: As in `check_gradient`.
    """
    results = _partial.setdefault(classifier, {})
    key = (image.shape[2:], id(module))
    if key not in results:
        results[key] = _leaves_out(classifier, image, module)
    return results[key]


def _leaves_out(classifier: Classifier, image: Images, module: nn.Module | None) -> bool:
    """Return whether the gradient changes when the network's own attempts to disable gradients are ignored."""
    noise = torch.from_numpy(uniform(seed_of("gradient"), image.numel())).view_as(image).to(image)
    gradients = []
    with untouched(classifier), classifier.uncounted():
        for mode in (nullcontext(), Uncut()):
            inputs = ((image.detach() + noise) / 2).requires_grad_()
            reset_generators(classifier)
            try:
                with mode, nullcontext([inputs]) if module is None else _last_output_of(module) as outputs:
                    logits = classifier(inputs)
                gradients.append(_gradient(logits, outputs[-1]))
            except Exception as error:  # without `no_grad`, networks may raise any exception
                if is_out_of_memory(error):
                    raise
                return False
    partial, whole = gradients
    if partial is None or whole is None:
        return False
    return not bool((whole - partial).norm() <= CHANGE * whole.norm())


@contextmanager
def _last_output_of(module: nn.Module) -> Iterator[list[Tensor]]:
    outputs: list[Tensor] = []

    def keep(module: nn.Module, inputs: object, output: Tensor) -> Tensor:
        """Store the output, and return a copy, because later operations may write to the returned tensor."""
        kept = output.clone()
        outputs.append(kept if kept.requires_grad else kept.requires_grad_())
        return outputs[-1].clone()

    handle = module.register_forward_hook(keep, prepend=True)  # before the network's hooks, which may use the output
    try:
        yield outputs
    finally:
        handle.remove()
