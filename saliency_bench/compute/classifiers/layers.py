"""Find the modules that output feature maps, with one forward pass and hooks that exist only inside `with`.

A feature map has the shape (B, C, h, w). In transformers with windows and stages, it may also have the shape (B, h, w,
C), or consist of tokens (B, h * w, C). No library documents which of these layouts a module uses, and names and layouts
differ between transformers, timm and torchvision. The layout of an output is therefore inferred from the grids of the
convolutions before it, and from these grids halved several times.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import count, takewhile
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from saliency_bench.compute.classifiers.classifier import Classifier
from saliency_bench.compute.classifiers.cuts import is_full_cut
from saliency_bench.compute.classifiers.placement import lies_as_the_image, stem_lies_as_the_image
from saliency_bench.errors import UserError
from saliency_bench.target_weights import BINARY
from saliency_bench.types import Images
from saliency_bench.utils.messages import complain

OUTSIDE = "use gradient, integrated_gradients, occlusion or rise"
HALVINGS = 5  # how many times stages without convolutions may halve a convolution's grid


@dataclass(frozen=True)
class MapLayout:
    """Layout of the feature map in a module's output: its grid (h, w), and its axes "BCHW", "BHWC" or "BNC"."""

    axes: str
    grid: tuple[int, int]

    @property
    def pixels(self) -> int:
        """Number of pixels of the map."""
        return self.grid[0] * self.grid[1]

    def channels_first(self, values: Tensor) -> Tensor:
        """Convert values (n, ...) in this layout to (n, C, h, w)."""
        if self.axes == "BNC":
            values = values.unflatten(1, self.grid)
        return values if self.axes == "BCHW" else values.movedim(-1, 1)


@dataclass(frozen=True)
class Output:
    """Output of a module for one image.

    Attributes:
        name: Name of the module.
        shape: Shape of the output.
        layout: Layout of the feature map in the output, or None if the output is not a feature map.
        pooled: Whether pooling lowered the resolution after the last convolution or linear layer.
        passive: Whether the module only pools or drops values.
        scores: Whether the output consists of class scores. This is the case if the mean over the pixels equals the
            logits, or if a linear layer over tokens computes the output with one channel per class (the second head of
            VOLO).
    """

    name: str
    shape: tuple[int, ...]
    layout: MapLayout | None
    pooled: bool
    passive: bool
    scores: bool = False


def cam_layer(classifier: Classifier, images: Images) -> str:
    """Return the layer that Grad-CAM reads: the classifier's `layer`, or the last feature map.

    The last feature map is the output of the last module that outputs a map of more than one pixel, after the
    activation and before any pooling. The search skips pooling modules, containers that end in pooling, dropout and
    identity. It also skips maps of class scores whose mean equals the logits (SqueezeNet) or that a second head
    computes from tokens (VOLO). In VGG, the last feature map is 14 x 14; in ResNet, it is the output of layer4. All
    evidence from the image passes through the last feature map (`cuts`), and the map is aligned with the image
    (`placement`). The classifier's `layer` is returned without these checks.

    Raises:
        UserError: The network's last features are tokens that are not patches in row order, or no feature map contains
            all evidence from the image.
    """
    if classifier.layer:
        return classifier.layer
    name, maps = last_feature_map(classifier, images), _feature_maps(classifier, images)
    if name is None:
        refuse_script(classifier)
        if maps and is_cut(classifier, images, maps[-1]):
            raise _of_place(classifier, images, maps[-1])
        if maps:
            raise _of_part(classifier, images, maps[-1])
        if grown := _grown(classifier, images):
            raise _of_views(classifier, grown.name, grown.shape[0], 1)
        raise UserError(
            f"no convolutional block found in {classifier.id} (is it a transformer?); name a layer with layer=..., use "
            "gradcam_vit or gae for a transformer, or use an explainer that only needs the outputs, such as rise"
        )
    if name != maps[-1]:
        part = f"layer {maps[-1]} of {classifier.id}, the last feature map, contains only part of the evidence"
        if is_cut(classifier, images, maps[-1]):
            part = (
                f"the tokens of layer {maps[-1]} of {classifier.id} are not in row-major order (row by row over "
                "the image)"
            )
        _complain_once(classifier, images, maps[-1], f"{part}; using layer {name}, which contains all of the evidence")
    return name


def has_feature_maps(classifier: Classifier, images: Images) -> bool:
    """Return whether the network computes feature maps of the image or of views of the image."""
    return bool(_feature_maps(classifier, images)) or _grown(classifier, images) is not None


def check_cut(classifier: Classifier, images: Images, layer: str, outputs: list[Tensor]) -> None:
    """Check that a layer's last output contains all evidence and is aligned with the image.

    If the layer runs once and a branch bypasses it (as inside a residual block), only a message is printed.

    Raises:
        UserError: The layer runs several times and its last output does not contain all evidence, the layer runs on
            several views of an image, or its map is not aligned with the image.
    """
    if len(outputs[-1]) != len(images) and _grown(classifier, images):
        raise _of_views(classifier, layer, len(outputs[-1]), len(images))
    whole = is_cut(classifier, images, layer)
    if not whole and len(outputs) > 1:
        raise _of_part(classifier, images, layer)
    if not _is_placed(classifier, images, layer):
        raise _of_place(classifier, images, layer)
    if not whole:
        part = _of_part(classifier, images, layer)
        _complain_once(classifier, images, layer, f"{part} (the current map shows only part of the evidence)")


def check_patches(classifier: Classifier, images: Images) -> None:
    """Check that all of a transformer's evidence about the image comes from its patches.

    Raises:
        UserError: A branch of the network bypasses the patches, or the patches are computed several times.
    """
    layer = _patch_layer(classifier, images)
    if layer is None:
        return
    maps = {
        output.name for output in _outputs(classifier, images[:1]) if output.layout and output.layout.axes == "BCHW"
    }
    stems = [name for name in _around(layer) if name in maps]  # a residual block that ends the stem
    if not any(is_cut(classifier, images, name) for name in [layer, *stems, *_first_block(classifier, images)]):
        raise _of_part(classifier, images, layer)


def _first_block(classifier: Classifier, images: Images) -> list[str]:
    """Return the modules that output tokens, up to the first block (the first module whose name is a number)."""
    modules = dict(classifier.model.named_modules())
    names = [
        output.name for output in _outputs(classifier, images[:1])
        if len(output.shape) == 3 and output.shape[1] > 1 and any(modules[output.name].children())
    ]  # fmt: skip
    ends = (index for index, name in enumerate(names) if name.rpartition(".")[2].isdigit())
    return names[: next(ends, len(names)) + 1]


def check_views(classifier: Classifier, images: Images) -> None:
    """Raise UserError for a transformer that runs on several views of an image, in one batch or one after the other."""
    if grown := _grown(classifier, images):
        raise _of_views(classifier, grown.name, grown.shape[0], 1)
    layer = _patch_layer(classifier, images)
    if layer is not None and runs_of(classifier, images, layer) > 1:
        check_patches(classifier, images)


def _patch_layer(classifier: Classifier, images: Images) -> str | None:
    """Return the layer that computes a transformer's patches: the last convolution, or else the first linear layer."""
    modules = dict(classifier.model.named_modules())
    names = [output.name for output in _outputs(classifier, images[:1]) if len(output.shape) > 2]
    convolutions = [name for name in names if isinstance(modules[name], nn.Conv2d)]
    linear = (name for name in names if isinstance(modules[name], nn.Linear))
    return convolutions[-1] if convolutions else next(linear, None)


def _around(layer: str) -> list[str]:
    """Return the names of the modules that contain a layer, from the innermost to the outermost."""
    parts = layer.split(".")
    return [".".join(parts[:length]) for length in range(len(parts) - 1, 0, -1)]


def _complain_once(classifier: Classifier, images: Images, layer: str, line: str) -> None:
    complained = _recording(classifier, images[:1]).complained
    if layer not in complained:
        complained.add(layer)
        complain(line)


def is_cut(classifier: Classifier, images: Images, layer: str) -> bool:
    """Return whether all evidence from the image reaches the logits through a layer's last output.

    The result is cached per image size, because it depends on the branches of the network, but hardly on the weights.
    """
    recording = _recording(classifier, images[:1])
    if layer not in recording.cuts:
        runs = sum(output.name == layer for output in recording.outputs)
        module = classifier.module_named(layer)
        recording.cuts[layer] = runs > 0 and is_full_cut(classifier, images[:1], module, runs)
    return recording.cuts[layer]


def _is_placed(classifier: Classifier, images: Images, layer: str) -> bool:
    """Return whether a layer's map is aligned with the image. The result is cached per image size."""
    recording, layout = _recording(classifier, images[:1]), layout_of(classifier, images, layer)
    if layout is None or layout.pixels == 1:
        return True
    if layer not in recording.placed:
        module = classifier.module_named(layer)
        recording.placed[layer] = lies_as_the_image(
            classifier, images[:1], module, layout.grid, layout.channels_first
        ) and _is_stem_placed(classifier, images, layout.grid)
    return recording.placed[layer]


def _is_stem_placed(classifier: Classifier, images: Images, grid: tuple[int, int]) -> bool:
    """Return whether the first convolution is aligned with the image to within half a cell of a layer's grid."""
    modules = dict(classifier.model.named_modules())
    for output in _outputs(classifier, images[:1]):
        module, layout = modules[output.name], output.layout
        if isinstance(module, nn.Conv2d) and layout is not None and layout.pixels > 1:
            sides = zip(grid, module.kernel_size, images.shape[2:], strict=True)
            rows, columns = (0.5 / cells + kernel / 2 / side for cells, kernel, side in sides)  # unpadded convolutions
            return stem_lies_as_the_image(classifier, images[:1], module, layout.grid, (rows, columns))
    return True


def _holds_tokens(classifier: Classifier, images: Images, layer: str) -> bool:
    layout = layout_of(classifier, images, layer)
    return layout is not None and layout.axes == "BNC"


def runs_of(classifier: Classifier, images: Images, layer: str) -> int:
    """Return the number of times that a forward pass calls a layer."""
    return sum(output.name == layer for output in _outputs(classifier, images[:1]))


def _grown(classifier: Classifier, images: Images) -> Output | None:
    """Return the last output that consists of maps or tokens if it has several per image, else None.

    The batch grows if the network creates several views of each image.
    """
    outputs = (output for output in reversed(_outputs(classifier, images[:1])) if not output.passive)
    last = next((output for output in outputs if len(output.shape) in (3, 4)), None)
    return last if last and last.shape[0] > 1 else None


def _of_views(classifier: Classifier, layer: str, maps: int, images: int) -> UserError:
    """Return the error for a network that classifies several views of an image, such as crops."""
    return UserError(
        f"{classifier.id} creates several pictures of each image (crops, views or tiles?): its batch grows from "
        f"{images} "
        f"to {maps} at layer {layer}, so the outputs of its layers are not maps of the image; {OUTSIDE}"
    )


def _of_place(classifier: Classifier, images: Images, layer: str) -> UserError:
    """Return the error for a layer whose map is not aligned with the image."""
    if _holds_tokens(classifier, images, layer):
        return UserError(
            f"the tokens of layer {layer} of {classifier.id} are not in row-major order (Hiera orders tokens for its "
            f"pooling), so they are not a map of the image; {OUTSIDE}"
        )
    return UserError(
        f"the map of layer {layer} of {classifier.id} is not aligned with the image: its forward pass crops, pads, "
        f"mirrors or rotates the image, or shifts features; {OUTSIDE}, or transform the images beforehand"
    )


def _of_part(classifier: Classifier, images: Images, layer: str) -> UserError:
    """Return the error for a layer whose last output does not contain all evidence."""
    runs = runs_of(classifier, images, layer)
    if runs > 1:
        why = (
            f"runs {runs} times in one forward pass (perhaps once for each view of the image), and no single output "
            "contains all of the evidence"
        )
    else:
        why = "contains only part of the evidence because another branch bypasses it"
    return UserError(f"layer {layer} of {classifier.id} {why}; {_fix(classifier, images, layer)}")


def _fix(classifier: Classifier, images: Images, layer: str) -> str:
    """Suggest a layer with an output that contains all evidence.

    The suggestion is the innermost block around the given layer that has such an output, or else the layer of the last
    feature map.
    """
    maps = set(_feature_maps(classifier, images))
    blocks = (name for name in _around(layer) if name in maps and is_cut(classifier, images, name))
    name = next(blocks, None) or last_feature_map(classifier, images)
    return (
        f"no layer contains all of the evidence, so {OUTSIDE}"
        if name is None
        else f"use layer {name}, which contains all of the evidence"
    )


def refuse_script(classifier: Classifier) -> None:
    """Raise UserError for a TorchScript network, because its layers cannot be accessed from Python."""
    if any(isinstance(module, torch.jit.ScriptModule) for module in classifier.model.modules()):
        raise UserError(
            f"{classifier.id} is TorchScript, and the layers of TorchScript cannot be read; pass the module from which "
            f"it was compiled, or {OUTSIDE}"
        )


def last_feature_map(classifier: Classifier, images: Images, pixels: int = 1) -> str | None:
    """Return the last, outermost module whose map is aligned, contains all evidence and has more than `pixels` pixels.

    The result is None if there is no such module, or if non-patch tokens follow the last map. If the last map does not
    contain all evidence, the result is the last earlier module whose map contains all evidence.
    """
    maps = _feature_maps(classifier, images, pixels)
    if maps and is_cut(classifier, images, maps[-1]) and _is_placed(classifier, images, maps[-1]):
        return maps[-1]
    partial: tuple[str, ...] = ()  # a module that is not a full cut contains no full cut
    for name in dict.fromkeys(output.name for output in reversed(_outputs(classifier, images[:1]))):
        within = f"{name}."
        if name.startswith(partial) or not any(other == name or other.startswith(within) for other in maps):
            continue
        if not is_cut(classifier, images, name):
            partial += (within,)
        elif name in maps and _is_placed(classifier, images, name):
            return name
        elif name in maps and not _holds_tokens(classifier, images, name):
            return None  # maps before it are misaligned as well
    return None


def _feature_maps(classifier: Classifier, images: Images, pixels: int = 1) -> list[str]:
    """Return the modules that output a map of more than `pixels` pixels, in the order in which they finish.

    Modules inside a block are left out if the block's own map is no larger than `pixels` (the first convolutions of a
    block that halves the map), because other branches of the block bypass them. A Sequential, a module that contains
    the first convolution, and a module that ends in pooling count as chains, not as blocks. If a later
    module outputs features that do not form a map, such as tokens that are not patches, the maps before it are left
    out.
    """
    outputs = [output for output in _outputs(classifier, images[:1]) if not output.passive]
    modules = dict(classifier.model.named_modules())
    first = next((output.name for output in outputs if isinstance(modules[output.name], nn.Conv2d)), "")
    small = tuple(
        f"{output.name}." for output in outputs
        if output.layout and output.layout.pixels <= pixels and not output.pooled
        and not isinstance(modules[output.name], nn.Sequential) and not first.startswith(f"{output.name}.")
    )  # fmt: skip
    last = {output.name: output for output in outputs}  # the last output of a module that runs several times
    maps: list[str] = []
    for output in _before_scores(outputs):
        if output.layout is None and len(output.shape) in (3, 4):
            maps = []
        elif (
            output.layout and output.layout.pixels > pixels and not output.pooled
            and not output.name.startswith(small) and output is last[output.name]
        ):  # fmt: skip
            maps.append(output.name)
    return maps


def last_convolution(classifier: Classifier, images: Images) -> int | None:
    """Return the number of pixels in the last convolution's output.

    Outputs of one pixel (linear layers) are ignored.
    """
    modules = dict(classifier.model.named_modules())
    sizes = [
        output.layout.pixels for output in _outputs(classifier, images[:1])
        if isinstance(modules[output.name], nn.Conv2d) and output.layout and output.layout.pixels > 1
    ]  # fmt: skip
    return sizes[-1] if sizes else None


def layout_of(classifier: Classifier, images: Images, layer: str) -> MapLayout | None:
    """Return the layout of the feature map in a layer's last output, or None if it is not a feature map."""
    layouts = [output.layout for output in _outputs(classifier, images[:1]) if output.name == layer]
    return layouts[-1] if layouts else None


def _before_scores(outputs: list[Output]) -> list[Output]:
    """Return the outputs up to the last features. Class scores (`Output.scores`) are removed.

    If the outputs are tokens, only the last layer counts as a head, because inside a block the number of channels may
    equal the number of classes by chance.
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
    """Return whether an output is a channels-last map."""
    return output.layout is not None and output.layout.axes != "BCHW"


@dataclass(frozen=True)
class Recording:
    """Record of a network's forward pass, and cached results that are derived from it.

    Attributes:
        outputs: Outputs of the modules, in the order in which they finish.
        cuts: {layer: whether it is a full cut}.
        placed: {layer: whether its map is aligned with the image}.
        complained: Layers for which a message has already been printed.
    """

    outputs: list[Output]
    cuts: dict[str, bool] = field(default_factory=dict)
    placed: dict[str, bool] = field(default_factory=dict)
    complained: set[str] = field(default_factory=set)


_recordings: WeakKeyDictionary[Classifier, dict[tuple, Recording]] = WeakKeyDictionary()


def _outputs(classifier: Classifier, image: Images) -> list[Output]:
    return _recording(classifier, image).outputs


def _recording(classifier: Classifier, image: Images) -> Recording:
    """Return the record of a forward pass of one image, computed once per image size."""
    recordings = _recordings.setdefault(classifier, {})
    key = (image.shape[2:], tuple(map(id, classifier.model.modules())))
    if key not in recordings:
        recordings[key] = Recording(_record(classifier, image))
    return recordings[key]


def _record(classifier: Classifier, image: Images) -> list[Output]:
    seen: list[tuple[Output, Tensor | None]] = []
    modules = dict(classifier.model.named_modules())

    def watch(name: str) -> Callable[..., None]:
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
        # TorchScript accepts no hooks. A parametrisation, such as weight norm, outputs a weight.
        if name and "parametrizations" not in name.split(".") and not isinstance(module, torch.jit.ScriptModule)
    ]
    try:
        with torch.no_grad(), classifier.uncounted(), Pooling() as pooling:
            logits = classifier(image)
            logits = logits[:, 1:] if classifier.activation == BINARY else logits  # the network's own logit
    finally:
        for handle in handles:
            handle.remove()
    return [_with_scores(output, modules[output.name], means, logits) for output, means in seen]


def _with_scores(output: Output, module: nn.Module, means: Tensor | None, logits: Tensor) -> Output:
    """Return the output, marked as scores if it comes from a head over tokens or its pixel means equal the logits."""
    if _are_tokens(output) and isinstance(module, nn.Linear):
        return replace(output, scores=output.shape[-1] == logits.shape[1])
    if means is None or means.shape != logits.shape:
        return output
    return replace(output, scores=torch.allclose(means.float(), logits, rtol=1e-3, atol=1e-6))


class Pooling(TorchFunctionMode):
    """Context manager that marks tensors shrunk by pooling. Convolutions and linear layers remove the mark."""

    def __init__(self) -> None:
        super().__init__()
        self.grids: list[tuple[int, int]] = []  # grids of the convolutions so far

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = function(*args, **(kwargs or {}))
        name = getattr(function, "__name__", "")
        if isinstance(output, Tensor):
            if name == "conv2d":
                self.grids.append((output.shape[-2], output.shape[-1]))
            is_pooled = name not in _COMPUTING and self._made_smaller(name, _pictures((args, kwargs)), output)
            if is_pooled or self.is_pooled(output):  # never a parameter, because nothing else would unmark it
                setattr(output, _MARK, is_pooled)
        return output

    def _made_smaller(self, name: str, inputs: list[Tensor], output: Tensor) -> bool:
        """Return whether this operation pools its input or has only pooled inputs."""
        lowers = "pool" in name and bool(inputs) and output.shape[2:].numel() < inputs[0].shape[2:].numel()
        return lowers or (bool(inputs) and all(map(self.is_pooled, inputs)))

    @staticmethod
    def is_pooled(values: Tensor) -> bool:
        """Return whether a tensor is marked."""
        return bool(getattr(values, _MARK, False))

    def layout(self, output: Tensor, image: Images) -> MapLayout | None:
        """Infer the layout of the feature map in an output from the grids of the convolutions before it."""
        shape = tuple(output.shape)
        if len(shape) == 4:
            tall, wide = shape[2:]
            height, width = image.shape[2:]
            # Interpolation or padding may follow the convolutions, so compare with the image's aspect ratio, up to
            # rounding.
            is_upright = abs(wide - width * tall / height) <= 2 or tall * wide == 1
            if shape[2:] in (grids := list(self._sizes())) or (is_upright and shape[1:3] not in grids):
                return MapLayout("BCHW", (tall, wide))
            return MapLayout("BHWC", (shape[1], shape[2])) if shape[1:3] in grids else None
        if len(shape) == 3:
            grid = next(((tall, wide) for tall, wide in self._sizes() if 1 < tall * wide == shape[1]), None)
            return None if grid is None else MapLayout("BNC", grid)
        return None

    def _sizes(self) -> Iterator[tuple[int, int]]:
        """Yield the grids of the convolutions in reverse order, each followed by its repeated halvings."""
        for tall, wide in dict.fromkeys(reversed(self.grids)):
            for halving in range(HALVINGS + 1):
                part = 2**halving
                yield -(-tall // part), -(-wide // part)
                yield tall // part, wide // part


def _pictures(values: Any) -> list[Tensor]:
    """Return the tensors that have more than one pixel or token. Weights and per-channel factors are left out."""
    return [
        value for value in tree_leaves(values)
        if isinstance(value, Tensor) and not isinstance(value, nn.Parameter)
        and value.ndim >= 3 and value.shape[2:].numel() > 1
    ]  # fmt: skip


@contextmanager
def detached_at(module: nn.Module) -> Iterator[list[Tensor]]:
    """Cut the autograd graph at a module's output. Yield a list to which each call adds its output as a leaf tensor.

    The leaf requires gradients. Later modules receive a copy, so that an in-place operation after the module does not
    overwrite the leaf.
    """
    outputs: list[Tensor] = []
    if isinstance(module, torch.jit.ScriptModule):
        raise UserError(
            "the layer is compiled with TorchScript, so its output cannot be read; choose a different layer, or pass "
            "the original network, before torch.jit was applied"
        )

    def cut(module: nn.Module, inputs: Any, output: Any) -> Tensor:
        if not isinstance(output, Tensor):
            raise UserError(
                f"the layer {type(module).__name__} returns {type(output).__name__}, not a tensor; choose a different "
                "layer"
            )
        outputs.append(output.detach().float().requires_grad_())
        return outputs[-1].to(output.dtype, copy=True)

    handle = module.register_forward_hook(cut, prepend=True)  # the network's own hooks may use the output
    try:
        yield outputs
    finally:
        handle.remove()


@contextmanager
def replaced_at(module: nn.Module, value: Tensor, runs: int) -> Iterator[None]:
    """Replace the module's output with `value` in the last of its `runs` calls."""
    calls = count(1)

    def replace(module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
        return value.to(output.dtype, copy=True) if next(calls) == runs else output

    handle = module.register_forward_hook(replace, prepend=True)
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
