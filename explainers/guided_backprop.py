"""Guided backpropagation (Springenberg et al., 2015): the gradient without negative values at ReLUs.

    backward through y = relu(x):  g_x = (x > 0) * relu(g_y)        map = max over channels of |g_image|

reduction="sum" sums the signed values over channels. All ReLUs are intercepted when they are computed: as modules or
functions, in place or not, and even if a module is used several times. `relu6`, and `clamp` with the lower limit 0, are
treated in the same way. See docs/other_packages.md for how other packages behave. An error is raised for a network
without ReLUs (for example, a network with GELU or SiLU), because the result would be the plain gradient. Li et al.
(2020) evaluate the method in section 2.1.2.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from saliency_bench.compute.classifiers.classifier import Classifier
from saliency_bench.declarations import explainer
from saliency_bench.errors import UserError
from saliency_bench.explainers._gradients import Reduction, gradient_at, over_channels
from saliency_bench.types import Images, Maps, On, Target


@explainer(
    version=1,
    needs="gradients",
    passes=1,
    signed={"reduction": "sum"},
    also_called=("gbp", "guided backpropagation"),
    elsewhere=(("captum", "captum.attr.GuidedBackprop(model).attribute(x, target=label).abs().amax(1)"),),
)
def guided_backprop(
    classifier: Classifier, images: Images, target: Target, *, reduction: Reduction = "max", on: On = "logit"
) -> Maps:
    """Return the gradient with negative values set to 0 at the output of every ReLU.

    Args:
        classifier: Network to explain.
        images: Images of shape (B, 3, H, W) with values in [0, 1].
        target: Weights over the logits, of shape (B, K).
        reduction: Reduction over channels: the largest absolute value ("max") or the sum of the signed values ("sum").
        on: Whether the target's weights apply to logits ("logit") or to probabilities ("probability").

    Returns:
        Maps of shape (B, H, W), non-negative for reduction "max" and signed for "sum".

    Raises:
        UserError: The network has no ReLU.
    """
    with GuidedReLUs() as relus:
        guided = gradient_at(classifier, images, target, on)
    if not relus.count:
        raise UserError(
            f"guided_backprop is not defined for {classifier.id}, which has no ReLU; "
            "use gradient, smoothgrad or integrated_gradients"
        )
    return over_channels(guided, reduction)


class GuidedReLUs(TorchFunctionMode):
    """Context manager that sets negative values of the gradient to 0 at the output of every ReLU.

    Attributes:
        count: Number of computed ReLUs.
    """

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_function__(self, function: Callable, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        """Call a function and, if it is a ReLU, register a hook on its gradient."""
        output = function(*args, **(kwargs or {}))
        if _is_relu(function, args, kwargs or {}) and isinstance(output, Tensor) and output.requires_grad:
            self.count += 1
            output.register_hook(torch.relu)
        return output


def _is_relu(function: Callable, args: tuple, kwargs: dict) -> bool:
    """Return whether a function is a ReLU or a clamp with the lower limit 0."""
    name = getattr(function, "__name__", "").rstrip("_")
    if name in ("relu", "relu6"):
        return True
    if name in ("clamp", "clip", "clamp_min", "hardtanh"):
        low = next((kwargs[key] for key in ("min", "min_val") if key in kwargs), (*args, None, None)[1])
        return not isinstance(low, Tensor) and low == 0
    return False
