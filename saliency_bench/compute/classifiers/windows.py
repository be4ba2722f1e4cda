"""Compute pictures that differ from their image only inside a window, in early layers only where the window reaches.

`occlusion` passes hundreds of pictures that equal their image outside a small window. A convolution's output then
differs from that of the image only around the window. `Patched` holds a batch of such feature maps as that of the image
and a crop of each picture. It is a tensor that the network computes with as usual: convolutions, pooling, batch norms
and elementwise functions give another `Patched`. Any other operation first pastes the crops into whole feature maps
(`Patched.whole`) and continues with plain tensors, and so does a crop that covers more than `LARGEST` of its map. This
is the definition itself in another order, so only rounding differs, by about 1e-6 of the logits.

It is used for float32 on a CPU and images of at least `SMALLEST` pixels, if the network has a faster copy
(`fast_forward`). For each image, the first and the
middle window are also passed whole. The image's other pictures are computed this way only if these logits differ by
at most `TOLERANCE`, no value is read by Python, and crops save at least `SAVING` of the multiplications of all
convolutions. Otherwise they are passed whole, and the log gives the reason once. This depends on the image alone, so
equal images give equal bits in any batch.

Memory: the feature maps of one image up to the layer where crops are pasted are kept for its other passes.
"""

import logging
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

from saliency_bench.compute.classifiers.classifier import Classifier
from saliency_bench.compute.classifiers.fast_forward import recorded_calls
from saliency_bench.types import Images
from saliency_bench.utils.devices import is_out_of_memory

LARGEST = 0.5  # share of a feature map that a crop may cover
SAVING = 0.2  # share of multiplications; below this, cutting and pasting cost as much
SMALLEST = 96**2  # pixels of an image, for the same reason
TOLERANCE = 1e-5  # of logits, relative to the largest

NORMS = ("native_batch_norm", "_native_batch_norm_legit_no_training")
# Functions of the values at one position. `cat` joins channels.
ELEMENTWISE = {
    "_to_copy", "abs", "add", "cat", "celu", "clamp", "clamp_max", "clamp_min", "div", "elu", "exp", "gelu",
    "hardsigmoid", "hardswish", "hardtanh", "leaky_relu", "mish", "mul", "neg", "relu", "rsub", "sigmoid", "silu",
    "softplus", "sub", "tanh", "_prelu_kernel",
}  # fmt: skip

log = logging.getLogger(__name__)


class Windows(NamedTuple):
    """Where the pictures made from an image may differ from it: in a square each.

    Attributes:
        top: Int (count,), first row of each picture's window.
        left: Int (count,), its first column.
        side: Its side in pixels; windows lie within the image.
    """

    top: Tensor
    left: Tensor
    side: int


def windowed(
    classifier: Classifier,
    forward: Callable[[Images], Tensor],
    images: Images,
    draw: Callable[[Tensor, Tensor], Images],
    windows: Windows,
) -> Callable[[Tensor, Tensor], Tensor]:
    """Return a function (samples, pictures) -> logits of these pictures; arguments as of `draw` (`passes.Draw`).

    Args:
        classifier: The classifier.
        forward: Its faster copy.
        images: The images.
        draw: Function (samples, pictures) -> these pictures.
        windows: Where each picture may differ from its image.
    """
    latest: tuple[int, _Unchanged | None] = (-1, None)

    def logits_of(samples: Tensor, pictures: Tensor) -> Tensor:
        """Return the logits of pictures, which are computed in part if the check of their image allows it."""
        nonlocal latest
        if len(samples) > 1:
            return forward(draw(samples, pictures))
        sample = int(samples)
        if latest[0] != sample:
            latest = sample, None  # the features of the image before are freed first
            latest = sample, _checked(classifier, forward, images[sample : sample + 1], draw, samples, windows)
        drawn, unchanged = draw(samples, pictures), latest[1]
        if unchanged is not None:
            try:
                return _whole(forward(unchanged.patched(drawn, windows, pictures)))
            except Exception as error:
                _note(classifier, error)
                latest = sample, None
        return forward(drawn)

    computes = (classifier.device.type, classifier.arithmetic.removesuffix(", channels last"))
    large = images.shape[2] * images.shape[3] >= SMALLEST
    if large and forward is not classifier and computes == ("cpu", "fp32"):
        return logits_of
    return lambda samples, pictures: forward(draw(samples, pictures))


def _checked(
    classifier: Classifier,
    forward: Callable[[Images], Tensor],
    image: Images,
    draw: Callable[[Tensor, Tensor], Images],
    samples: Tensor,
    windows: Windows,
) -> "_Unchanged | None":
    """Return the features of an image for passes in part, or None if these are wrong or save too little."""
    pictures = torch.tensor([0, (len(windows.top) - 1) // 2])
    drawn, unchanged = draw(samples, pictures), _Unchanged(image)
    try:
        with torch.random.fork_rng(devices=[]):
            exact, products = _recorded_products(lambda: forward(drawn))
            logits = _whole(forward(unchanged.patched(drawn, windows, pictures)))
    except Exception as error:
        _note(classifier, error)
        return None
    off = float((logits - exact).masked_fill(logits == exact, 0).abs().max())  # a masked-out class is at -infinity
    if not off <= TOLERANCE * float(exact[exact.isfinite()].abs().max()):
        _note(classifier, _Unsuitable(f"their logits would be off by {off:.1e}"))
    elif unchanged.saved < SAVING * products:
        _note(classifier, _Unsuitable("windows soon reach everything, or another operation than a convolution"))
    else:
        return unchanged
    return None


def _recorded_products(forward: Callable[[], Tensor]) -> tuple[Tensor, float]:
    """Return the logits of a pass, and the multiplications of its convolutions for one picture."""
    logits, calls = recorded_calls(forward)
    if calls is None:
        raise _Unsuitable("Python reads a value")
    return logits, sum(_products(out, args[1]) for name, args, _, out in calls if name.startswith("aten.convolution."))


class _Unsuitable(Exception):
    """Why windows are not computed in part."""


def _note(classifier: Classifier, error: Exception) -> None:
    """Log once why pictures are passed whole. Running out of memory is raised: passes are then halved."""
    if is_out_of_memory(error):
        raise error
    _log_once(f"{classifier.id} passes occluded pictures whole, not only where a window reaches: {error}")


@cache
def _log_once(line: str) -> None:
    log.info("%s", line.partition("\n")[0])


def _products(output: Any, weight: Tensor) -> float:
    """Return the multiplications of a convolution for one picture."""
    return output[0].numel() * weight[0].numel()


class _Unchanged:
    """An image and its feature maps, which are computed once.

    Attributes:
        image: The image, (1, 3, H, W).
        kept: (operation, its arguments, output) of each operation in their order.
        position: Number of operations in the pass so far.
        saved: Multiplications of convolutions that crops saved in all passes, summed over them, for one picture each.
    """

    def __init__(self, image: Images):
        self.image = image.contiguous(memory_format=torch.channels_last)
        self.kept: list[tuple[tuple, tuple, Any]] = []
        self.position = 0
        self.saved = 0.0

    def patched(self, drawn: Images, windows: Windows, pictures: Tensor) -> "Patched":
        """Return pictures of which only the windows are kept, and start a pass."""
        self.position = 0
        top, left = windows.top[pictures], windows.left[pictures]
        positions = torch.arange(windows.side)
        rows, columns = (top[:, None] + positions)[:, :, None], (left[:, None] + positions)[:, None, :]
        crop = drawn.permute(0, 2, 3, 1)[torch.arange(len(top))[:, None, None], rows, columns]
        return Patched(self, self.image, crop.permute(0, 3, 1, 2), top, left)

    def output(self, func: Any, args: tuple, kwargs: dict) -> Any:
        """Return the output of an operation for the image alone, computed or kept from the pass before."""
        plain = tree_map_only(Patched, lambda patched: patched.features, (args, kwargs))
        # Arguments are kept as well, so no other tensor has the same id.
        key = func, repr(tree_map_only(Tensor, lambda tensor: (id(tensor), tensor._version), plain))
        if self.position == len(self.kept) or self.kept[self.position][0] != key:
            self.kept[self.position :] = [(key, plain, func(*plain[0], **plain[1]))]
        self.position += 1
        return self.kept[self.position - 1][2]


class Patched(Tensor):
    """Feature maps (n, C, H, W) that equal those of an image except in a crop each; `whole` makes them plain.

    Attributes:
        unchanged: The image and its feature maps.
        features: (1, C, H, W), those of the image here.
        crop: (n, C, h, w).
        top, left: Int (n,), where the crops lie; all are within the feature map.
        pasted: The plain tensor that replaces this once an operation needs it.
    """

    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, unchanged: _Unchanged, features: Tensor, crop: Tensor, top: Tensor, left: Tensor) -> "Patched":
        """Return a tensor without storage, with the strides of channels-last layout."""
        _, channels, height, width = features.shape
        strides = (channels * height * width, 1, width * channels, channels)
        size = (len(crop), channels, height, width)
        return Tensor._make_wrapper_subclass(cls, size, strides=strides, dtype=features.dtype, device=features.device)

    def __init__(self, unchanged: _Unchanged, features: Tensor, crop: Tensor, top: Tensor, left: Tensor):
        self.unchanged, self.pasted = unchanged, None
        self.place(features, crop, top, left)

    def place(self, features: Tensor, crop: Tensor, top: Tensor, left: Tensor) -> "Patched":
        """Replace the content, and return this."""
        self.features, self.crop, self.top, self.left = features, crop, top, left
        return self

    @property
    def small(self) -> bool:
        """Whether crops are still worth keeping."""
        covered = self.crop[0, 0].numel() / self.features[0, 0].numel()
        return self.pasted is None and covered <= LARGEST

    def whole(self) -> Tensor:
        """Return plain feature maps. Views and writes of later operations share their memory."""
        if self.pasted is None:
            start = torch.zeros_like(self.top)
            self.pasted = self.cut(start, self.shape[2], start, self.shape[3])
        return self.pasted

    def cut(self, top: Tensor, height: int, left: Tensor, width: int, fill: float = 0.0) -> Tensor:
        """Return rectangles (n, C, height, width) of the pictures' maps, with `fill` outside of the map."""
        crop_height, crop_width = self.crop.shape[2:]
        same = torch.equal(top, self.top) and torch.equal(left, self.left)
        if same and (height, width) == (crop_height, crop_width):
            return self.crop
        map_height, map_width = self.shape[2:]
        rows, columns = (top[:, None] + torch.arange(height))[:, :, None], (left[:, None] + torch.arange(width))[:, None]
        down, right = rows - self.top[:, None, None], columns - self.left[:, None, None]
        # Positions (rows of channels) of the image's map, then of the crops, then one of the fill.
        parts = [part.permute(0, 2, 3, 1).flatten(0, 2) for part in (self.features, self.crop)]
        source = torch.cat([*parts, parts[0].new_full((1, self.shape[1]), fill)])
        first = len(parts[0]) + crop_height * crop_width * torch.arange(len(top))[:, None, None]
        in_crop = (down >= 0) & (down < crop_height) & (right >= 0) & (right < crop_width)
        in_map = (rows >= 0) & (rows < map_height) & (columns >= 0) & (columns < map_width)
        index = torch.where(in_map, rows * map_width + columns, len(source) - 1)
        index = torch.where(in_crop, first + down * crop_width + right, index)
        taken = source.index_select(0, index.flatten()).view(len(top), height, width, -1)
        return taken.permute(0, 3, 1, 2)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Compute an operation on crops, or on plain tensors."""
        kwargs = kwargs or {}
        if torch.Tag.inplace_view in func.tags:  # would change the shape of the plain tensor only
            raise _Unsuitable(f"it changes a shape in place ({func})")
        output = _on_crops(func, args, kwargs)
        if output is None:
            args, kwargs = tree_map_only(Patched, Patched.whole, (args, kwargs))
            output = func(*args, **kwargs)
        return output


def _whole(logits: Tensor) -> Tensor:
    return logits.whole() if isinstance(logits, Patched) else logits


def _on_crops(func: Any, args: tuple, kwargs: dict) -> Any:
    """Return the output of an operation as `Patched`, or None if it cannot be computed on crops."""
    inputs = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Patched)]
    _, name, overload = str(func).split(".")
    written = name.endswith("_")
    if not all(patched.small for patched in inputs) or (written and args[0] is not inputs[0]):
        return None
    name = name.removesuffix("_")
    if name in ELEMENTWISE and _is_elementwise(name, inputs, args, kwargs):
        func = getattr(getattr(torch.ops.aten, name), overload) if written else func
        content = _elementwise(func, inputs, args, kwargs)
        if not written:
            return Patched(inputs[0].unchanged, *content)
        same = content[0].dtype == inputs[0].dtype and content[0].shape[1:] == inputs[0].shape[1:]
        return inputs[0].place(*content) if same else None
    if written or args[0] is not inputs[0] or len(inputs) > 1:
        return None
    if name == "convolution" and not args[6]:
        return _convolution(func, *args)
    if name == "max_pool2d_with_indices" and not kwargs:
        return _max_pool(func, *args), torch.empty(0, dtype=torch.int64)  # indices of other shape fail if they are read
    if name == "constant_pad_nd" and len(args[1]) <= 4 and min(args[1]) >= 0:
        before_columns, _, before_rows, _ = (*args[1], 0, 0)[:4]
        features = inputs[0].unchanged.output(func, args, kwargs)
        return Patched(inputs[0].unchanged, features, inputs[0].crop, args[0].top + before_rows,
                       args[0].left + before_columns)  # fmt: skip
    if name in NORMS and (name != NORMS[0] or not args[5]):
        features, *others = inputs[0].unchanged.output(func, args, kwargs)
        crop = func(inputs[0].crop, *args[1:], **kwargs)[0]
        return Patched(inputs[0].unchanged, features, crop, inputs[0].top, inputs[0].left), *others
    return None


def _is_elementwise(name: str, inputs: list[Patched], args: tuple, kwargs: dict) -> bool:
    """Return whether all other tensors are numbers, or values of a channel that are equal for all pictures."""
    if name == "_to_copy" and kwargs.get("memory_format") == torch.contiguous_format:
        return False
    if name == "cat" and (args[1:] != (1,) or len(inputs) < len(args[0])):
        return False
    shapes = {(patched.shape[0], *patched.shape[1 + (name == "cat") :]) for patched in inputs}
    others = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor) and not isinstance(leaf, Patched)]
    of_channels = (other.numel() == 1 or (other.ndim == 3 and other.shape[1:] == (1, 1)) or
                   (other.ndim == 4 and (other.shape[0], *other.shape[2:]) == (1, 1, 1)) for other in others)  # fmt: skip
    return len(shapes) == 1 and all(of_channels) and all(other.ndim <= 4 for other in others)


def _elementwise(func: Any, inputs: list[Patched], args: tuple, kwargs: dict) -> tuple[Tensor, ...]:
    """Return (features, crop, top, left) of an elementwise function, with crops that cover those of all inputs."""
    spans = []
    for axis in (0, 1):
        starts = [(patched.top, patched.left)[axis] for patched in inputs]
        ends = [start + patched.crop.shape[2 + axis] for start, patched in zip(starts, inputs, strict=True)]
        first, last = torch.stack(starts).amin(0), torch.stack(ends).amax(0) - 1
        spans.append(_spans(first, last, inputs[0].shape[2 + axis]))
    (top, height), (left, width) = spans
    args_of_crop, kwargs_of_crop = tree_map_only(
        Patched, lambda patched: patched.cut(top, height, left, width), (args, kwargs)
    )
    return inputs[0].unchanged.output(func, args, kwargs), func(*args_of_crop, **kwargs_of_crop), top, left


def _spans(first: Tensor, last: Tensor, length: int) -> tuple[Tensor, int]:
    """Return spans of one size within 0 ... length - 1 that hold first ... last of each picture, as (starts, size)."""
    first, last = first.clamp(0, length - 1), last.clamp(0, length - 1)
    size = max(1, int((last - first).max()) + 1)
    return first.clamp(max=length - size), size


def _convolution(
    func: Any, x: Patched, weight: Tensor, bias: Any, stride: Any, padding: Any, dilation: Any, *others: Any
) -> Patched:
    features = x.unchanged.output(func, (x, weight, bias, stride, padding, dilation, *others), {})
    kernel = [reach * (side - 1) + 1 for reach, side in zip(dilation, weight.shape[2:], strict=True)]
    output = _sliding(
        x, features, kernel, stride, padding, 0.0, lambda cut: func(cut, weight, bias, stride, [0, 0], dilation, *others)
    )
    share = 1 - output.crop[0, 0].numel() / features[0, 0].numel()
    x.unchanged.saved += share * _products(features, weight)
    return output


def _max_pool(
    func: Any, x: Patched, kernel: Any, stride: Any = (), padding: Any = (0,), dilation: Any = (1,), *ceil: Any
) -> Patched:
    features = x.unchanged.output(func, (x, kernel, stride, padding, dilation, *ceil), {})[0]
    kernel, stride, padding, dilation = (
        list(pair) * (3 - len(pair)) for pair in (kernel, stride or kernel, padding, dilation)
    )
    reach = [step * (side - 1) + 1 for step, side in zip(dilation, kernel, strict=True)]
    return _sliding(
        x, features, reach, stride, padding, -torch.inf, lambda cut: func(cut, kernel, stride, [0, 0], dilation)[0]
    )


def _sliding(
    x: Patched, features: Tensor, kernel: Any, stride: Any, padding: Any, fill: float, apply: Callable[[Tensor], Tensor]
) -> Patched:
    """Return the output of a kernel that slides over the maps: where it meets the crops.

    Args:
        x: The input.
        features: The output for the image alone.
        kernel: Rows and columns from which an output is computed, with those that a dilation leaves out.
        stride: Of rows and columns.
        padding: Before the first row and column.
        fill: Value of the padding.
        apply: The operation without padding, on the parts of the maps that it needs.
    """
    spans, taken = [], []
    for axis, start in enumerate((x.top, x.left)):
        padded = start + padding[axis]
        step, reach = stride[axis], kernel[axis]
        first = -((reach - 1 - padded) // step)  # the first output whose kernel ends at or behind the crop's start
        last = (padded + x.crop.shape[2 + axis] - 1) // step
        starts, size = _spans(first, last, features.shape[2 + axis])
        spans.append((starts, size))
        taken += [starts * step - padding[axis], (size - 1) * step + reach]
    (top, _), (left, _) = spans
    return Patched(x.unchanged, features, apply(x.cut(*taken, fill)), top, left)
