"""Find the modules that output feature maps by one forward pass; hooks that live only inside `with`.

A feature map is (B, C, h, w), or as transformers of windows and stages have it (B, h, w, C) or tokens (B, h * w, C).
Which of them an output is follows from the grids of the convolutions before it, and their halves. No library tells:
modules of transformers, timm and torchvision agree neither on names nor on layouts.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from saliency_bench.classifiers.classifier import Classifier
from saliency_bench.errors import UserError
from saliency_bench.target_weights import BINARY
from saliency_bench.types import Images

HALVINGS = 5  # how often stages without convolutions may halve a convolution's grid


@dataclass(frozen=True)
class Layout:
    """How a module's output holds a map of `grid`, (h, w): `axes` is "BCHW", "BHWC" or "BNC"."""

    axes: str
    grid: tuple[int, int]

    @property
    def pixels(self) -> int:
        """Number of pixels of the map."""
        return self.grid[0] * self.grid[1]

    def channels_first(self, values: Tensor) -> Tensor:
        """Return values (n, ...) of this layout as (n, C, h, w)."""
        if self.axes == "BNC":
            values = values.unflatten(1, self.grid)
        return values if self.axes == "BCHW" else values.movedim(-1, 1)


@dataclass(frozen=True)
class Output:
    """What a module gave for one image.

    Attributes:
        name: Name of the module.
        shape: Shape of the output.
        layout: How it holds a feature map, or None if it is none.
        pooled: Whether its resolution was lowered by pooling after the last convolution or linear layer.
        passive: Whether the module only pools or drops.
        scores: Whether it holds class scores: its mean over the pixels is the logits, or it is a linear layer over
            tokens with as many channels as there are classes (the second head of VOLO).
    """

    name: str
    shape: tuple[int, ...]
    layout: Layout | None
    pooled: bool
    passive: bool
    scores: bool = False


def cam_layer(classifier: Classifier, images: Images) -> str:
    """Return the layer that Grad-CAM reads: the classifier's `layer`, or the last feature map.

    That is the last module that gives a map of more than one pixel, before any pooling and with its activation: no
    pooling, and no container that ends in it (14 x 14 in VGG, layer4 in ResNet); nor the maps of class scores whose
    mean are the logits (SqueezeNet), or that a second head makes of tokens (VOLO). Dropout and identity do not count.

    Raises:
        UserError: The network's last features are tokens that are not its patches, row by row.
    """
    name = classifier.layer or last_feature_map(classifier, images)
    if name is None:
        refuse_script(classifier)
        raise UserError(
            f"no convolutional block found in {classifier.id} (a transformer?); name a layer with layer=..., "
            "or use gradcam_vit or gae for a transformer, or an explainer that only uses outputs, such as rise"
        )
    return name


def refuse_script(classifier: Classifier) -> None:
    """Raise UserError for TorchScript, whose layers cannot be read from Python."""
    if any(isinstance(module, torch.jit.ScriptModule) for module in classifier.model.modules()):
        raise UserError(
            f"{classifier.id} is TorchScript, which has no layers that can be read; give the module that it was made "
            "from, or use gradient, integrated_gradients, occlusion or rise"
        )


def last_feature_map(classifier: Classifier, images: Images, pixels: int = 1) -> str | None:
    """Return the last, outermost module that gives a map of more than `pixels`, if no other tokens come after.

    What lies within a block whose own map is no larger than `pixels` (the first convolutions of one that halves it)
    does not count: other branches of the block go past it. A Sequential, what holds the first convolution as well, or
    what ends in pooling is no block but a chain.
    """
    outputs = [output for output in _outputs(classifier, images[:1]) if not output.passive]
    modules = dict(classifier.model.named_modules())
    first = next((output.name for output in outputs if isinstance(modules[output.name], nn.Conv2d)), "")
    small = tuple(
        f"{output.name}." for output in outputs
        if output.layout and output.layout.pixels <= pixels and not output.pooled
        and not isinstance(modules[output.name], nn.Sequential) and not first.startswith(f"{output.name}.")
    )  # fmt: skip
    last: str | None = None
    for output in _before_scores(outputs):
        if output.layout is None and len(output.shape) in (3, 4):
            last = None
        elif (
            output.layout and output.layout.pixels > pixels and not output.pooled and not output.name.startswith(small)
        ):
            last = output.name
    return last


def last_convolution(classifier: Classifier, images: Images) -> int | None:
    """Return the pixels of the last convolution's output, ignoring outputs of one pixel, which are linear layers."""
    modules = dict(classifier.model.named_modules())
    sizes = [
        output.layout.pixels for output in _outputs(classifier, images[:1])
        if isinstance(modules[output.name], nn.Conv2d) and output.layout and output.layout.pixels > 1
    ]  # fmt: skip
    return sizes[-1] if sizes else None


def layout_of(classifier: Classifier, images: Images, layer: str) -> Layout | None:
    """Return how the last output of a layer holds a feature map, or None if it holds none."""
    layouts = [output.layout for output in _outputs(classifier, images[:1]) if output.name == layer]
    return layouts[-1] if layouts else None


def _before_scores(outputs: list[Output]) -> list[Output]:
    """Return the outputs without what follows the last features: a map of class scores, see `Output.scores`.

    Of tokens, only the last layer can be a head: within blocks, channels may be as many as classes by chance.
    """
    maps = [output for output in outputs if output.layout and output.layout.pixels > 1]
    if not maps or not any(output.scores for output in maps):
        return outputs
    shape = maps[-1].shape
    last = list(takewhile(lambda output: output.shape == shape, reversed(maps)))
    is_within = len(last) > 1 and any(output.scores and _are_tokens(output) for output in last)
    if not any(output.scores for output in last) or is_within or len(last) == len(maps):
        return outputs
    return outputs[: outputs.index(last[-1])]


def _are_tokens(output: Output) -> bool:
    """Return whether an output is a map whose channels come last."""
    return output.layout is not None and output.layout.axes != "BCHW"


_recordings: WeakKeyDictionary[Classifier, dict[tuple, list[Output]]] = WeakKeyDictionary()


def _outputs(classifier: Classifier, image: Images) -> list[Output]:
    """Return the outputs of modules for one image, in the order in which they finish; recorded once per image size."""
    recordings = _recordings.setdefault(classifier, {})
    key = (image.shape[2:], tuple(map(id, classifier.model.modules())))
    if key not in recordings:
        recordings[key] = _record(classifier, image)
    return recordings[key]


def _record(classifier: Classifier, image: Images) -> list[Output]:
    """Pass one image through the network and return what its modules give."""
    seen: list[tuple[Output, Tensor | None]] = []
    modules = dict(classifier.model.named_modules())

    def watch(name: str) -> Callable[..., None]:
        """Return the hook of a module."""

        def hook(module: nn.Module, inputs: Any, output: Any) -> None:
            if isinstance(output, Tensor):
                layout = pooling.layout(output, image) if output.ndim and len(output) == 1 else None
                passive = type(module).__name__.startswith(_PASSIVE)
                means = output.mean(dim=(2, 3)) if layout and layout.axes == "BCHW" else None
                shape = tuple(output.shape)
                seen.append((Output(name, shape, layout, pooling.is_pooled(output), passive), means))

        return hook

    handles = [
        module.register_forward_hook(watch(name))
        for name, module in modules.items()
        # TorchScript takes no hooks; a parametrisation, as of weight norm, gives a weight.
        if name and "parametrizations" not in name.split(".") and not isinstance(module, torch.jit.ScriptModule)
    ]
    try:
        with torch.no_grad(), classifier.uncounted(), Pooling() as pooling:
            logits = classifier(image)
            logits = logits[:, 1:] if classifier.activation == BINARY else logits  # those of the network itself
    finally:
        for handle in handles:
            handle.remove()
    return [_with_scores(output, modules[output.name], means, logits) for output, means in seen]


def _with_scores(output: Output, module: nn.Module, means: Tensor | None, logits: Tensor) -> Output:
    """Return an output marked as scores if it is a head over tokens, or its means over the pixels are the logits."""
    if _are_tokens(output) and isinstance(module, nn.Linear):
        return replace(output, scores=output.shape[-1] == logits.shape[1])
    if means is None or means.shape != logits.shape:
        return output
    return replace(output, scores=torch.allclose(means.float(), logits, rtol=1e-3, atol=1e-6))


class Pooling(TorchFunctionMode):
    """Mark what pooling made smaller until a convolution or linear layer works on it, inside `with`."""

    def __init__(self) -> None:
        super().__init__()
        self.grids: list[tuple[int, int]] = []  # of the convolutions so far

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = function(*args, **(kwargs or {}))
        name = getattr(function, "__name__", "")
        if isinstance(output, Tensor):
            if name == "conv2d":
                self.grids.append((output.shape[-2], output.shape[-1]))
            is_pooled = name not in _COMPUTING and self._made_smaller(name, _pictures((args, kwargs)), output)
            if is_pooled or self.is_pooled(output):  # never a parameter, which nothing else than itself marks
                setattr(output, _MARK, is_pooled)
        return output

    def _made_smaller(self, name: str, inputs: list[Tensor], output: Tensor) -> bool:
        """Return whether this call pools, or works on pooled inputs alone."""
        lowers = "pool" in name and bool(inputs) and output.shape[2:].numel() < inputs[0].shape[2:].numel()
        return lowers or (bool(inputs) and all(map(self.is_pooled, inputs)))

    @staticmethod
    def is_pooled(values: Tensor) -> bool:
        """Return whether a tensor is marked."""
        return bool(getattr(values, _MARK, False))

    def layout(self, output: Tensor, image: Images) -> Layout | None:
        """Return how an output of one image holds a feature map, by the grids of the convolutions so far."""
        shape = tuple(output.shape)
        if len(shape) == 4:
            tall, wide = shape[2:]
            height, width = image.shape[2:]
            # Convolutions may have given way to interpolation or padding: the image's proportions, up to rounding.
            is_upright = abs(wide - width * tall / height) <= 2 or tall * wide == 1
            if shape[2:] in (grids := list(self._sizes())) or (is_upright and shape[1:3] not in grids):
                return Layout("BCHW", (tall, wide))
            return Layout("BHWC", (shape[1], shape[2])) if shape[1:3] in grids else None
        if len(shape) == 3:
            grid = next(((tall, wide) for tall, wide in self._sizes() if 1 < tall * wide == shape[1]), None)
            return None if grid is None else Layout("BNC", grid)
        return None

    def _sizes(self) -> Iterator[tuple[int, int]]:
        """Yield the grids of the convolutions, the last first, each with its halves."""
        for tall, wide in dict.fromkeys(reversed(self.grids)):
            for halving in range(HALVINGS + 1):
                part = 2**halving
                yield -(-tall // part), -(-wide // part)
                yield tall // part, wide // part


def _pictures(values: Any) -> list[Tensor]:
    """Return the tensors of more than one pixel or token: neither weights nor one factor per channel."""
    return [
        value for value in tree_leaves(values)
        if isinstance(value, Tensor) and not isinstance(value, nn.Parameter)
        and value.ndim >= 3 and value.shape[2:].numel() > 1
    ]  # fmt: skip


@contextmanager
def detached_at(module: nn.Module) -> Iterator[list[Tensor]]:
    """Cut the graph at a module's output, and yield the list of its outputs: a leaf per call, which takes gradients.

    Later modules get a copy, so that an in-place operation after the module does not overwrite the leaf.
    """
    outputs: list[Tensor] = []
    if isinstance(module, torch.jit.ScriptModule):
        raise UserError("the layer is TorchScript and cannot be read; name another layer, or give the module itself")

    def cut(module: nn.Module, inputs: Any, output: Any) -> Tensor:
        """Keep the output as a leaf and return a copy of it."""
        if not isinstance(output, Tensor):
            raise UserError(
                f"the layer {type(module).__name__} returns {type(output).__name__}, not a tensor; name another layer"
            )
        outputs.append(output.detach().float().requires_grad_())
        return outputs[-1].to(output.dtype, copy=True)

    handle = module.register_forward_hook(cut)
    try:
        yield outputs
    finally:
        handle.remove()


@contextmanager
def replaced_at(module: nn.Module, value: Tensor) -> Iterator[None]:
    """Replace a module's output by `value`: later modules compute on it, with its batch size."""

    def replace(module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
        """Return the value in the place of the output."""
        return value.to(output.dtype, copy=True)

    handle = module.register_forward_hook(replace)
    try:
        yield
    finally:
        handle.remove()


_MARK = "_saliency_bench_pooled"
_COMPUTING = ("conv2d", "linear")
_PASSIVE = (
    "AdaptiveAvgPool",
    "AdaptiveMaxPool",
    "AvgPool",
    "MaxPool",
    "Dropout",
    "DropPath",
    "Identity",
    "SelectAdaptive",
)
