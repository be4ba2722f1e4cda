"""Rules of excitation backpropagation, which replace gradients.

Relevance p of a layer's outputs is propagated to its inputs a >= 0 through positive weights only:

    convolution, linear, average pooling    a * W+^T (p / (W+ a)), 0 where W+ a = 0; biases are ignored
    batch norm                              relevance is unchanged
    a + b, two branches                     fractions a+ / (a+ + b+) and b+ / (a+ + b+)
    ReLU, max pooling, reshaping, cat       same as for a gradient
    the last linear layer                   virtual unit of the target, see `Excitation`
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from saliency_bench.errors import UserError

WEIGHTED = {"conv2d", "linear"}
AVERAGES = {"avg_pool2d", "adaptive_avg_pool2d", "mean"}
SUMS = {"add", "add_", "__add__", "__radd__", "__iadd__"}
GATES = {"relu", "relu_", "relu6", "hardtanh", "dropout", "dropout_", "max_pool2d", "adaptive_max_pool2d"}
SHAPES = {"flatten", "view", "view_as", "reshape", "squeeze", "unsqueeze", "permute", "transpose", "contiguous"}
PARTS = {"cat", "concat", "pad", "chunk", "split", "__getitem__", "masked_fill", "where"}
COPIES = {"to", "float", "type_as", "clone", "requires_grad_"}
PASSING = GATES | SHAPES | PARTS | COPIES


class Excitation(TorchFunctionMode):
    """Context manager that replaces gradients with relevance, following the rules above. Outputs do not change.

    The last linear layer has weights W and inputs h. It is treated as one virtual unit with the weights v = sum_k w_k
    W_k, where w is the gradient that arrives at its outputs. The unit's relevance of 1 is propagated to h as h v+ /
    sum(h v+). With `contrastive`, the relevance of the dual unit with the weights -v is subtracted. A zero sum yields
    0. The rules are linear in p, so subtraction at any other layer is equivalent.

    Args:
        network: Name of the network for messages.
        contrastive: Whether to subtract the relevance of the dual unit.

    Raises:
        UserError: The forward pass contains an operation without a rule.
    """

    def __init__(self, network: str, contrastive: bool):
        super().__init__()
        self.network = network
        self.contrastive = contrastive
        self.last: _Layer | None = None

    def __torch_function__(self, function: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        """Call a function and, if an input requires gradients, attach a rule for the backward pass."""
        kwargs = kwargs or {}
        name = getattr(function, "__name__", str(function))
        if any(_takes_gradients(value) for value in (*args, *kwargs.values())):
            if name in WEIGHTED:
                return self._weighted(name, function, *args, **kwargs)
            if name in AVERAGES:
                return self._average(name, function, *args, **kwargs)
            if name in SUMS and len(args) == 2 and not kwargs:
                return self._sum(name, *args)
            if name == "batch_norm":
                return _Pass.apply(args[0] if args else kwargs["input"], partial(function, *args, **kwargs))
        output = function(*args, **kwargs)
        parts = output if isinstance(output, tuple | list) else (output,)
        if name not in PASSING and any(_takes_gradients(part) for part in parts):
            raise self._refused(f"uses {name}")
        return output

    def _weighted(self, name: str, function: Any, input: Tensor, weight: Tensor, bias: Any = None, *args, **kwargs):
        """Compute a convolution or linear layer, and attach the rule for its relevance."""

        def through(weights: Tensor) -> Callable[[Tensor], Tensor]:
            """Return the layer with these weights and without bias."""
            return lambda inputs: function(inputs, weights.float(), None, *args, **kwargs)

        compute = partial(function, input, weight, bias, *args, **kwargs)
        self.last = _Layer(
            input, compute, through(weight), lambda inputs: through(weight.clamp(min=0))(inputs), is_weighted=True
        )
        return self._excite(name, self.last)

    def _average(self, name: str, function: Any, input: Tensor, *args, **kwargs) -> Tensor:
        """Compute average pooling, and attach the rule for its relevance."""

        def average(inputs: Tensor) -> Tensor:
            return function(inputs, *args, **kwargs)

        return self._excite(name, _Layer(input, partial(average, input), average, average))

    def _excite(self, name: str, layer: "_Layer") -> Tensor:
        """Compute a layer, and attach the rule for its relevance. A negative input raises UserError."""
        if (layer.inputs < 0).any():
            raise self._refused(f"applies {name} to negative values")
        return _Excite.apply(layer.inputs, layer, self)

    def _sum(self, name: str, a: Any, b: Any) -> Tensor:
        """Compute a + b, and attach the rule that splits relevance between the branches."""
        in_place = name in ("add_", "__iadd__")
        if isinstance(a, Tensor) and isinstance(b, Tensor) and a.shape == b.shape:
            return _Share.apply(a, b, in_place)
        if _takes_gradients(a) and _takes_gradients(b):
            raise self._refused("adds two branches of different shapes")
        branch, constant = (a, b) if _takes_gradients(a) else (b, a)
        return _Pass.apply(branch, partial(torch.Tensor.add_ if in_place else torch.add, branch, constant))

    def check_end(self, logits: Tensor) -> None:
        """Raise UserError if the logits also depend on another layer, such as the head of another branch."""
        nodes, seen = [logits.grad_fn], set()
        while nodes and self.last is not None:
            node = nodes.pop()
            if node is None or node in seen:
                continue
            seen.add(node)
            layer = getattr(node, "layer", None)
            if layer is self.last:
                continue
            if getattr(layer, "is_weighted", False) or not node.next_functions:
                raise self._refused("has logits that do not come from its last layer alone")
            nodes += [function for function, _ in node.next_functions]

    def _refused(self, reason: str) -> UserError:
        return UserError(
            f"cebp is not defined for {self.network}, which {reason}; cebp supports only convolutions, "
            "linear layers, ReLUs, batch norm, pooling and sums; use gradcam, gradient or rise"
        )


def _takes_gradients(value: Any) -> bool:
    if isinstance(value, tuple | list):
        return any(_takes_gradients(part) for part in value)
    return isinstance(value, Tensor) and value.requires_grad


@dataclass
class _Layer:
    """Layer with the functions that the rules need.

    Attributes:
        inputs: Inputs of the layer.
        compute: Function that returns the outputs.
        linear: Function that applies the layer's weights to inputs, without the bias.
        positive: Function that applies the layer's positive weights to inputs.
        is_weighted: Whether the layer has weights, unlike an average.
    """

    inputs: Tensor
    compute: Callable[[], Tensor]
    linear: Callable[[Tensor], Tensor]
    positive: Callable[[Tensor], Tensor]
    is_weighted: bool = False


class _Excite(torch.autograd.Function):
    """Autograd function that applies a layer. Its backward pass implements excitation backpropagation."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, layer: _Layer, rules: Excitation) -> Tensor:
        ctx.save_for_backward(inputs)
        ctx.layer, ctx.rules = layer, rules
        return layer.compute()

    @staticmethod
    def backward(ctx: Any, *relevances: Tensor) -> tuple:
        (inputs,) = ctx.saved_tensors
        a, p = inputs.detach().float().requires_grad_(), relevances[0].float()
        is_last = ctx.layer is ctx.rules.last
        with torch.enable_grad():
            outputs = (ctx.layer.linear if is_last else ctx.layer.positive)(a)
        if not is_last:
            (share,) = torch.autograd.grad(outputs, a, torch.where(outputs > 0, p / outputs, 0))
            return (a * share).to(inputs.dtype), None, None
        (weights,) = torch.autograd.grad(outputs, a, p)
        relevance = _normalised(a * weights.relu())
        if ctx.rules.contrastive:
            relevance = relevance - _normalised(a * (-weights).relu())
        return relevance.to(inputs.dtype), None, None


class _Share(torch.autograd.Function):
    """Autograd function for a + b. Its backward pass splits relevance in proportion to the positive parts."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, in_place: bool) -> Tensor:
        ctx.save_for_backward(a.relu(), b.relu())
        if not in_place:
            return a + b
        ctx.mark_dirty(a)
        return a.add_(b)

    @staticmethod
    def backward(ctx: Any, *relevances: Tensor) -> tuple:
        a, b = ctx.saved_tensors
        unit = torch.where(a + b > 0, relevances[0] / (a + b), 0)
        return a * unit, b * unit, None


class _Pass(torch.autograd.Function):
    """Autograd function whose backward pass returns the relevance unchanged."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, compute: Callable[[], Tensor]) -> Tensor:
        output = compute()
        if output is inputs:
            ctx.mark_dirty(inputs)
        return output

    @staticmethod
    def backward(ctx: Any, *relevances: Tensor) -> tuple:
        return relevances[0], None


def _normalised(excitation: Tensor) -> Tensor:
    """Divide each sample by its sum. If the sum is zero, the sample becomes zeros."""
    total = excitation.flatten(1).sum(dim=1).view(-1, *(1,) * (excitation.ndim - 1))
    return torch.where(total > 0, excitation / total, 0)
