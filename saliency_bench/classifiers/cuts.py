"""Whether a layer is a full cut: whether all that the logits take from the image goes through the layer's last output.

Grad-CAM and its kin show the evidence that a layer holds. In a chain of layers that is all evidence, but not where
another branch goes past the layer, or where the network runs the layer on several views of the image. The test: do the
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

    Two images go through the network, the second with the module's output of the first: the logits must be the same,
    and have no gradient at either image. Values alone would miss what vanishes beside large logits; gradients alone
    what the network computes without them (a frozen branch).

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

    None also if the module runs more or less often than for another image.
    """
    inputs = image.clone().requires_grad_()
    for is_recording in (True, False):
        with torch.set_grad_enabled(is_recording), _last_output_held(module, runs, kept) as calls:
            torch.manual_seed(0)  # a network may draw; `untouched` sets the generators back
            try:
                logits = classifier(inputs if is_recording else image)
                count = len(calls)
                gradient = _gradient(logits, inputs)
            except (UserError, RuntimeError) as error:  # it takes no gradients: numpy, or writing to what they need
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
    """Hold the output of a module's last call fixed, and yield a list with an entry for each call.

    It is what `kept` holds; if that is empty, it is the output itself, which `kept` then keeps.
    """
    calls: list[None] = []

    def hold(module: nn.Module, inputs: object, output: Tensor) -> Tensor | None:
        """Return what takes the place of the last output; None leaves the others as they are."""
        calls.append(None)
        if len(calls) != runs:
            return None
        if not kept:
            kept.append(output.detach().clone())
        return kept[0].clone()  # later operations may write to it

    handle = module.register_forward_hook(hold, prepend=True)  # a hook of the network may take the output elsewhere
    try:
        yield calls
    finally:
        handle.remove()
