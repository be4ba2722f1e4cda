"""Test whether a layer is a full cut: everything that the logits take from the image passes through its last output.

Grad-CAM and similar methods show the evidence that a layer holds. In a chain of layers that is all evidence, but not if
another branch bypasses the layer, or if the network runs the layer on several views of the image. The test: do the
logits still depend on the image while the layer's last output is held fixed?
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from saliency_bench.classifiers.classifier import Classifier
from saliency_bench.errors import UserError
from saliency_bench.types import Images
from saliency_bench.utils.devices import is_out_of_memory
from saliency_bench.utils.seeds import seed_of, uniform
from saliency_bench.utils.untouched import untouched

TOLERANCE = 1e-4  # of the largest logit; both passes compute the same, but a GPU may choose other algorithms


def is_full_cut(classifier: Classifier, image: Images, module: nn.Module, runs: int) -> bool:
    """Return whether the logits do not depend on the image while the last output of a module is held fixed.

    Two images are passed through the network, the second with the module's output for the first: the logits must be
    equal, and have no gradient at either image. Comparing only values would miss effects too small beside large logits;
    checking only gradients would miss parts computed without them (a frozen branch).

    Args:
        classifier: the network.
        image: (1, 3, H, W).
        module: one of its modules.
        runs: how often a forward pass calls the module.
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
    """Return the logits with the module's last output held fixed; None if they have a gradient at the image.

    Also None if the number of runs of the module depends on the image.
    """
    inputs = image.clone().requires_grad_()
    for is_recording in (True, False):
        with torch.set_grad_enabled(is_recording), _last_output_held(module, runs, kept) as calls:
            torch.manual_seed(0)  # a network may draw random numbers; `untouched` restores the generators
            try:
                logits = classifier(inputs if is_recording else image)
                count = len(calls)
                gradient = _gradient(logits, inputs)
            except (UserError, RuntimeError) as error:  # no gradients possible: NumPy, or in-place changes
                if not is_recording or is_out_of_memory(error):
                    raise
                continue
        is_cut = count == runs and (gradient is None or bool((gradient == 0).all()))
        return logits.detach() if is_cut else None
    raise AssertionError


def _gradient(logits: Tensor, inputs: Images) -> Tensor | None:
    """Return the gradient of a sum in which no logit cancels another; None if there is none."""
    if not logits.requires_grad:
        return None
    weights = torch.arange(1, logits.shape[1] + 1, device=logits.device).cos().expand_as(logits)
    return torch.autograd.grad(logits, inputs, weights, allow_unused=True)[0]


@contextmanager
def _last_output_held(module: nn.Module, runs: int, kept: list[Tensor]) -> Iterator[list[None]]:
    """Hold the output of a module's last call fixed, and yield a list with one entry per call.

    The output is replaced by the one in `kept`; if `kept` is empty, the output is stored there.
    """
    calls: list[None] = []

    def hold(module: nn.Module, inputs: object, output: Tensor) -> Tensor | None:
        """Return the replacement of the last output; None leaves the other outputs unchanged."""
        calls.append(None)
        if len(calls) != runs:
            return None
        if not kept:
            kept.append(output.detach().clone())
        return kept[0].clone()  # later operations may write to it

    handle = module.register_forward_hook(hold, prepend=True)  # before hooks of the network, which may use the output
    try:
        yield calls
    finally:
        handle.remove()
