"""Guided backpropagation (Springenberg et al., 2015; P1 2.1.2): the gradient with its negative part cut at ReLUs.

    backward through y = relu(x):  g_x = (x > 0) * relu(g_y)        map = max over channels of |g_image|

reduction="sum" sums the signed values over channels. ReLUs are intercepted where they are computed, as module or
function, in place or not, used once or often, and so are relu6 and clamp from 0. Other packages:
docs/other_packages.md. A network without ReLU (GELU, SiLU) is refused: there this would be the plain gradient under
another name.
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
    """Return the gradient, with its negative part cut at every ReLU.

    Args:
        classifier: the network to explain.
        images: (B, 3, H, W) in [0, 1].
        target: (B, K), weights over the logits.
        reduction: over channels: "max" of the absolute values, or signed "sum".
        on: whether the target's weights apply to logits ("logit") or to probabilities ("probability").

    Returns:
        Maps (B, H, W): non-negative for reduction "max", signed for "sum".

    Raises:
        UserError: The network computes no ReLU.
    """
    with GuidedReLUs() as relus:
        guided = gradient_at(classifier, images, target, on)
    if not relus.count:
        raise UserError(
            f"guided_backprop is not defined for {classifier.id}, which computes no ReLU; "
            "use gradient, smoothgrad or integrated_gradients"
        )
    return over_channels(guided, reduction)


class GuidedReLUs(TorchFunctionMode):
    """Context that cuts the negative part of the gradient at the output of every ReLU.

    Attributes:
        count: number of ReLUs that were computed.
    """

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_function__(self, function: Callable, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        """Compute a function; if it is a ReLU, cut its gradient."""
        output = function(*args, **(kwargs or {}))
        if _is_relu(function, args, kwargs or {}) and isinstance(output, Tensor) and output.requires_grad:
            self.count += 1
            output.register_hook(torch.relu)
        return output


def _is_relu(function: Callable, args: tuple, kwargs: dict) -> bool:
    """Return whether a function is a ReLU, or clamps from 0."""
    name = getattr(function, "__name__", "").rstrip("_")
    if name in ("relu", "relu6"):
        return True
    if name in ("clamp", "clip", "clamp_min", "hardtanh"):
        low = next((kwargs[key] for key in ("min", "min_val") if key in kwargs), (*args, None, None)[1])
        return not isinstance(low, Tensor) and low == 0
    return False
