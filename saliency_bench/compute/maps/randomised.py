"""Re-initialise the layers of a network one after the other, from the logits down (Adebayo et al., 2018).

A layer is a module with its own weights, such as a convolution, linear layer, attention layer or embedding. A module
that has only factors and offsets, such as a normalisation, belongs to the layer before it. Weights and biases are drawn
as in torch's convolutions and linear layers, uniform in +-1 / sqrt(inputs). A normalisation is reset to factors of 1,
offsets of 0 and initial statistics. The draws depend only on a seed and on a module's position in the network, not on
the machine or on wrappers of the network.
"""

import copy
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor, nn

from saliency_bench.compute.classifiers.classifier import Classifier
from saliency_bench.errors import UserError, described
from saliency_bench.utils.seeds import seed_of, uniform


def layer_names(classifier: nn.Module) -> list[str]:
    """Return the names of the layers, from the logits down.

    Raises:
        UserError: The network has no weights.
    """
    return [name for name, _ in reversed(_layers(classifier))]


def cascade(classifier: nn.Module, seed: int) -> Iterator[tuple[str, nn.Module]]:
    """Yield (layer name, copy of the network in which this layer and all layers above it are re-initialised).

    The same copy is yielded each time.

    Raises:
        UserError: The network has no weights, or cannot be copied.
    """
    copied = _copy(classifier)
    for name, modules in reversed(_layers(copied)):
        for place, module in modules:
            _reinitialise(module, seed_of(seed, "randomised", place))
        yield name, copied


def _layers(classifier: nn.Module) -> list[tuple[str, list[tuple[int, nn.Module]]]]:
    """Return [(layer name, [(position, module)])], from the image up.

    Positions count the modules that have their own parameters.
    """
    layers: list[tuple[str, list[tuple[int, nn.Module]]]] = []
    before: list[tuple[int, nn.Module]] = []  # modules before the first weights
    for place, (name, module) in enumerate(
        (name, module) for name, module in classifier.named_modules() if _own(module)
    ):
        if _has_weights(module):
            shown = name.removeprefix("model.") if isinstance(classifier, Classifier) else name
            layers.append((shown or type(module).__name__, [(place, module)]))
        else:
            (layers[-1][1] if layers else before).append((place, module))
    if not layers:
        who = getattr(classifier, "id", type(classifier).__name__)
        raise UserError(f"{who} has no weights to re-initialise; leave out metrics that randomise the network")
    layers[0][1].extend(before)
    return layers


def _has_weights(module: nn.Module) -> bool:
    return isinstance(module, nn.Linear | nn.modules.conv._ConvNd) or any(map(_is_matrix, _own(module)))


def _is_matrix(parameter: Tensor) -> bool:
    """Return whether a parameter has several dimensions larger than 1. A class token or a layer scale does not."""
    return sum(length > 1 for length in parameter.shape) > 1


def _own(module: nn.Module) -> list[Tensor]:
    return [parameter for parameter in module.parameters(recurse=False) if parameter.is_floating_point()]


def _copy(classifier: nn.Module) -> nn.Module:
    memo: dict[int, object] = {id(classifier.frame): classifier.frame} if isinstance(classifier, Classifier) else {}
    try:
        return copy.deepcopy(classifier, memo)
    except Exception as error:
        who = getattr(classifier, "id", type(classifier).__name__)
        raise UserError(
            f"{who} cannot be copied ({described(error)}), but randomising its weights needs a copy; leave out metrics "
            "that randomise the network"
        ) from error


@torch.no_grad()
def _reinitialise(module: nn.Module, seed: int) -> None:
    drawn = _has_weights(module)
    inputs = max([1, *(_inputs(parameter) for parameter in _own(module) if parameter.ndim > 1)])
    for name, parameter in module.named_parameters(recurse=False):
        if not parameter.is_floating_point():
            continue
        if drawn:
            bound = (_inputs(parameter) if _is_matrix(parameter) else inputs) ** -0.5
            values = bound * (2 * uniform(seed_of(seed, name), parameter.numel()) - np.float32(1))
            parameter.copy_(torch.from_numpy(values).view(parameter.shape))
        else:
            parameter.fill_(0.0 if any(word in name for word in ("bias", "beta")) else 1.0)
    if callable(reset := getattr(module, "reset_running_stats", None)):
        reset()


def _inputs(parameter: Tensor) -> int:
    """Return the number of inputs that each output of a parameter depends on."""
    return max(1, parameter.numel() // parameter.shape[0])
