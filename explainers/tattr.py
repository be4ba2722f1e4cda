"""Transformer Attribution (Chefer et al., 2021, CVPR): relevance of every attention matrix, weighted by gradients.

    R = M_L ... M_1 M_0        M_l = mean over heads of relu(d score / d A_l x R(A_l)) + I

A_l = softmax(q k^T / sqrt(d)) is the attention matrix of block l, of shape (heads, T, T). R(A_l) is the relevance of
A_l, computed from the target's weights by layer-wise relevance propagation (alpha = 1, beta = 0). Rows are not
normalised. The map is R[class token, patches]. In the following rules for the relevance r of an output z, a / b means a
/ (b + 1e-9), or 0 if b = 0:

    linear         x_j sum_i [x_j w_ij > 0] w_ij r_i / sum_j' [x_j' w_ij' > 0] x_j' w_ij'     (biases are ignored)
    matrix product half of x * grad(z; x) for each of the two factors x, with r / z as the incoming gradient
    sum x + y      a = x r / z and b = y r / z, then scaled so that a sums to |sum a| / (|sum a| + |sum b|) sum r,
                   and b to |sum b| / (|sum a| + |sum b|) sum r (sums over all tokens and features of one sample)
    mean           x * grad(z; x) with r / z as the incoming gradient
    softmax, normalisation, GELU (also as x * sigmoid(1.702 x)) and other activations, scaling, added constants:
    unchanged
    indexing, joining, reshaping: same as for a gradient; a value that is used twice receives the sum

If the target has weights of both signs, the relevance of its positive weights and of its negative weights is propagated
separately, and the difference is used (the rule for sums cannot start from weights that cancel). The gradient in the
formula is the gradient of the score.

If the classification head also reads the distillation token, or reads the mean of the patch tokens instead of a class
token, the rows of R - I for these tokens are averaged. In this average, all patch tokens together count as one token.
(In the row of a class token, I is zero at the patches.) Columns of class, distillation and register tokens are left
out. The grid of patches is upsampled to the size of the image by bilinear interpolation (`align_corners=False`).

The authors' rule for sums runs over the whole batch, so a map depends on the other images of the batch. Here, the map
of each image is computed separately, including the forward pass, and in float32 for any `precision`. The reason is that
the divisions amplify differences in the last bits between batches of different sizes: with random weights, a change of
1e-7 in the input may change half of the map. The authors' evaluation leaves out block 0, as with `start=1`. Here all
blocks are included by default, as in rollout.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from saliency_bench.compute.classifiers.attention import AttentionRecorder, recording_attention
from saliency_bench.compute.classifiers.classifier import Classifier
from saliency_bench.declarations import explainer
from saliency_bench.errors import UserError
from saliency_bench.explainers._flow import check_start, positive, product
from saliency_bench.explainers._gradients import cut, derivatives
from saliency_bench.target_weights import score
from saliency_bench.types import Images, Maps, On, Target

Inputs = tuple[Tensor, ...]
Rule = Callable[[Tensor, Inputs, Tensor], Inputs]  # (relevance of the output, inputs, output) -> relevance of inputs

UNCHANGED = {
    *("softmax", "layer_norm", "rms_norm", "batch_norm", "gelu", "relu", "silu", "sigmoid", "tanh", "dropout"),
    *("normalize", "add", "radd", "sub", "mul", "rmul", "div", "truediv"),
}
ROUTED = {
    *("getitem", "select", "narrow", "index_select", "chunk", "split", "unbind", "cat", "stack", "get", "contiguous"),
    *("reshape", "view", "flatten", "unflatten", "squeeze", "unsqueeze", "expand", "permute", "transpose", "movedim"),
    *("masked_fill", "where", "swapaxes", "to", "float", "double", "bfloat16", "type", "type_as", "clone"),
}


def check(*, start: int, **others: object) -> None:
    """Raise UserError if an option is out of range."""
    check_start("tattr", start)


@explainer(version=2, needs="attention, gradients", passes=1, check=check, also_called=("transformer attribution",))
def tattr(classifier: Classifier, images: Images, target: Target, *, start: int = 0, on: On = "logit") -> Maps:
    """Return the relevance of every attention matrix, weighted by the gradients of the score.

    Relevance is always propagated from the logits. Each image needs a forward pass, a backward pass and a propagation
    of relevance (two propagations for weights of both signs). The rule for a linear layer has four matrix products, so
    the total time is about that of six forward passes (ten for weights of both signs). The explainer needs
    about twice as much memory as a training step for one image.

    Args:
        classifier: Network to explain.
        images: Images of shape (B, 3, H, W) with values in [0, 1].
        target: Weights over the logits, of shape (B, K).
        start: Index of the first block that is included, starting at 0.
        on: Whether the target's weights apply to logits ("logit") or to probabilities ("probability").

    Returns:
        Non-negative maps of shape (B, H, W).

    Raises:
        UserError: The network has no attention, its attention does not cover all pairs of patches, or an operation has
            no rule (such as gated units or rotary positions).
    """
    check(start=start)
    maps = [_alone(classifier, image[None], row[None], start, on) for image, row in zip(images, target, strict=True)]
    return torch.cat(maps)


def _alone(classifier: Classifier, image: Images, weights: Target, start: int, on: str) -> Maps:
    """Return the map (1, H, W) of one image."""
    image = image.detach().requires_grad_()  # the relevance of a block is shared between its attention and its input
    with recording_attention(classifier, image, start, Propagating, whole=True, device=classifier.device.type) as seen:
        logits = classifier(image)
    assert isinstance(seen, Propagating)
    total = score(logits, weights, on, classifier).sum()
    matrices = seen.matrices[start:]
    gradients = derivatives(classifier, total, matrices, keep=True)
    seen.switch.propagating = True
    relevance = torch.autograd.grad(logits, matrices, weights.clamp(min=0), retain_graph=True)
    if (weights < 0).any():
        against = torch.autograd.grad(logits, matrices, (-weights).clamp(min=0))
        relevance = tuple(a - b for a, b in zip(relevance, against, strict=True))
    return seen.maps(product(positive(g, r) for g, r in zip(gradients, relevance, strict=True)), image)


@dataclass
class Switch:
    """Setting that selects what backward passes return: gradients or relevance."""

    propagating: bool = False


class Propagating(AttentionRecorder):
    """AttentionRecorder that makes backward passes return relevance while `switch.propagating` is set."""

    def __init__(self, start: int | None = None, whole: bool = False, device: str = "cpu"):
        super().__init__(start, whole)
        self.switch, self.device = Switch(), device
        self.scaled: tuple[Tensor | None, Tensor | None] = None, None  # the last c x, and x
        self.gate: tuple[Tensor | None, Tensor | None] = None, None  # the last sigmoid(c x), and x

    def __torch_function__(self, function, types, args=(), kwargs=None):
        """Call a function without autocast."""
        with torch.autocast(self.device, enabled=False):
            return super().__torch_function__(function, types, args, kwargs)

    def compute(self, function: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
        """Call a function, and attach the rule for its backward pass.

        Raises:
            UserError: The function depends on the patches but has no rule.
        """
        depends = [value for value in _tensors((args, kwargs)) if value.requires_grad]
        name = _name(function)
        if not depends or name in ROUTED or name == "conv2d":
            return function(*args, **kwargs)
        rule = self._rule(name, depends, args, kwargs)
        if rule is not None:
            inputs = [value for value in args if any(value is value_of_patches for value_of_patches in depends)]
            output = Ruled.apply(self.switch, rule, _of(function, args, kwargs), *inputs)
            self._note_gate(name, depends, output)
            return output
        output = function(*args, **kwargs)
        # Operations before the first attention need no rules, because only the relevance of attentions is computed.
        if self.matrices and any(value.requires_grad for value in _tensors(output)):
            if not self._is_connected():
                raise cut("this network")
            raise UserError(f"tattr has no rule for '{name}', which this model uses; use gae or rise")
        return output  # such as a shape or type

    def _is_connected(self) -> bool:
        """Return whether the input of the last attention has a gradient path to the image."""
        return self.inputs[-1] is not None and self.inputs[-1].requires_grad

    def _rule(self, name: str, depends: list[Tensor], args: tuple, kwargs: dict[str, Any]) -> Rule | None:
        """Return the rule of an operation, or None if it has none. One or two of its inputs depend on the patches."""
        leads = len(args) > 0 and args[0] is depends[0]
        if len(depends) == 2 and leads and args[1] is depends[1]:
            if name in ("matmul", "bmm"):
                return _product
            if name == "mul" and args[1] is self.gate[0] and args[0] is self.gate[1]:
                return _gate
            return _sum if name == "add" and args[0].shape == args[1].shape else None
        if len(depends) > 1 or not (leads or name in ("add", "mul")):
            return None
        if name == "linear":
            return partial(_linear, args[1] if len(args) > 1 else kwargs["weight"])
        return _mean if name == "mean" else _unchanged if name in UNCHANGED else None

    def _note_gate(self, name: str, depends: list[Tensor], output: Tensor) -> None:
        """Remember the output of a sigmoid or of a scaling, which may be part of a GELU."""
        if name == "sigmoid":
            scaled, x = self.scaled
            self.gate = output, x if depends[0] is scaled else depends[0]
        elif name in ("mul", "rmul") and len(depends) == 1:
            self.scaled = output, depends[0]


class Ruled(torch.autograd.Function):
    """Autograd function whose backward pass returns gradients or, if the switch is set, relevance.

    The rule defines the relevance.
    """

    @staticmethod
    def forward(ctx: Any, switch: Switch, rule: Rule, function: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
        """Return the output of the function."""
        ctx.switch, ctx.rule = switch, rule
        with torch.enable_grad():
            ctx.inputs = tuple(value.detach().requires_grad_() for value in inputs)
            ctx.output = function(*ctx.inputs)
        return ctx.output.detach()

    @staticmethod
    def backward(ctx: Any, *arriving: Tensor) -> Any:
        """Return the gradients or relevance of the inputs."""
        if ctx.switch.propagating:
            passed = ctx.rule(arriving[0], ctx.inputs, ctx.output)
        else:
            passed = torch.autograd.grad(ctx.output, ctx.inputs, arriving[0], retain_graph=True)
        return None, None, None, *passed


def _unchanged(relevance: Tensor, inputs: Inputs, output: Tensor) -> Inputs:
    return (relevance.to(inputs[0].dtype),)


def _gate(relevance: Tensor, inputs: Inputs, output: Tensor) -> Inputs:
    """Return the relevance of the inputs of the activation x * sigmoid(c x). x receives the relevance unchanged."""
    return relevance.to(inputs[0].dtype), torch.zeros_like(inputs[1])


def _linear(weight: Tensor, relevance: Tensor, inputs: Inputs, output: Tensor) -> Inputs:
    """Return the relevance of a linear layer's inputs. Only positive products are used.

    Class 0 of a single logit has the relevance -1, which is treated as the relevance 1 of a unit with negated weights.
    """
    if relevance.numel() == 1 and relevance < 0:
        weight, relevance = -weight, -relevance
    above, below = inputs[0].detach().clamp(min=0), inputs[0].detach().clamp(max=0)
    raising, lowering = weight.detach().clamp(min=0), weight.detach().clamp(max=0)
    ratio = _divided(relevance, F.linear(above, raising) + F.linear(below, lowering))
    return (above * (ratio @ raising) + below * (ratio @ lowering),)


def _mean(relevance: Tensor, inputs: Inputs, output: Tensor) -> Inputs:
    gradients = torch.autograd.grad(output, inputs, _divided(relevance, output.detach()), retain_graph=True)
    return tuple(value.detach() * gradient for value, gradient in zip(inputs, gradients, strict=True))


def _product(relevance: Tensor, inputs: Inputs, output: Tensor) -> Inputs:
    """Return the relevance of the two factors of a matrix product. Each factor receives half."""
    return tuple(part / 2 for part in _mean(relevance, inputs, output))


def _sum(relevance: Tensor, inputs: Inputs, output: Tensor) -> Inputs:
    """Return the relevance of the two terms of a sum, scaled as in the rule for sums in the module docstring."""
    ratio = _divided(relevance, output.detach())
    parts = [value.detach() * ratio for value in inputs]
    sums = [part.sum() for part in parts]
    shares = [_divided(total.abs(), sums[0].abs() + sums[1].abs()) * relevance.sum() for total in sums]
    return tuple(part * _divided(share, total) for part, share, total in zip(parts, shares, sums, strict=True))


def _divided(a: Tensor, b: Tensor) -> Tensor:
    """Return a / (b + 1e-9), or 0 if b = 0."""
    below = b + 1e-9
    below = torch.where(below == 0, 1e-9, below)
    return torch.where(b == 0, 0, a / below)


def _of(function: Callable[..., Any], args: tuple, kwargs: dict[str, Any]) -> Callable[..., Tensor]:
    """Turn `function` into an out-of-place function whose only arguments are those that depend on the patches."""
    kept = kwargs | ({"inplace": False} if "inplace" in kwargs else {})
    places = [index for index, value in enumerate(args) if isinstance(value, Tensor) and value.requires_grad]

    def of_inputs(*inputs: Tensor) -> Tensor:
        filled = list(args)
        for index, value in zip(places, inputs, strict=True):
            filled[index] = value
        return function(*filled, **kept)

    return of_inputs


def _name(function: Any) -> str:
    """Return an operator's name without underscores. In-place operators keep the trailing underscore."""
    name = function.__name__
    return name.strip("_") if name.endswith("__") else name.lstrip("_")


def _tensors(values: Any) -> Iterator[Tensor]:
    if isinstance(values, Tensor):
        yield values
    elif isinstance(values, dict):
        yield from _tensors(list(values.values()))
    elif isinstance(values, list | tuple):
        for value in values:
            yield from _tensors(value)
