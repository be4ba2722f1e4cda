"""Classify pictures that differ from their image only inside a window. Early layers compute only what differs.

`occlusion` passes hundreds of pictures that equal their image outside a small window. A convolution's output then
differs from its output for the image only around the window. A `Patched` stores the feature maps of these pictures as
one feature map of the image and one crop per picture. The network handles a `Patched` as a tensor: convolutions, max
pooling, batch norms, zero padding, elementwise functions and joined channels return another `Patched`. Any other
operation first pastes the crops into whole feature maps (`Patched.whole`) and continues with plain tensors. Crops that
cover more than a fraction `LARGEST` of the map are also pasted first. The results are the same except for rounding,
which may change the logits by about 1e-6 of their size.

Crops are used for float32 on a CPU, if the network has a faster copy (`fast_forward`), the images have at least
`SMALLEST` pixels, and all pictures of an image together have at least `FEWEST` pixels. For each image, the pictures
with the first and the middle window are also computed in full. Crops are used for the other pictures of the image only
if the logits of these two differ by at most `TOLERANCE`, no layer has a hook, the Python code reads no tensor value,
and crops save at least a fraction `SAVING` of the multiplications of all convolutions. Otherwise all pictures are
computed in full, and the reason is logged once. The choice depends on the image alone, so results do not depend on the
other images of a batch. All pictures that equal their image have the same logits, so covering pixels that already have
the fill's value changes no score.

The feature maps of one image, up to the layer that pastes crops, stay in memory during the passes of the image.
"""

import logging
from collections.abc import Callable, Sequence
from functools import cache
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.modules.module import _global_forward_hooks, _global_forward_pre_hooks

from saliency_bench.compute.classifiers.classifier import Classifier
from saliency_bench.compute.classifiers.fast_forward import recorded_calls
from saliency_bench.types import Images
from saliency_bench.utils.devices import is_out_of_memory
from saliency_bench.utils.interrupts import handlers_end_work

LARGEST = 0.5  # share of a feature map that a crop may cover
SAVING = 0.2  # share of multiplications; a smaller saving does not outweigh the cost of cutting and pasting
SMALLEST = 96**2  # pixels; for smaller images, cutting and pasting cost as much as they save
FEWEST = 2**20  # pixels in all pictures of an image; with fewer, the check costs as much time as crops save
TOLERANCE = 1e-5  # largest difference of logits, relative to the largest logit

NORMS = ("native_batch_norm", "_native_batch_norm_legit_no_training")
# Functions of the values at one position. `cat` joins channels.
ELEMENTWISE = {
    "_prelu_kernel", "_to_copy", "abs", "add", "cat", "celu", "clamp", "clamp_max", "clamp_min", "div", "elu", "exp",
    "gelu", "hardsigmoid", "hardswish", "hardtanh", "leaky_relu", "mish", "mul", "neg", "relu", "rsub", "sigmoid",
    "silu", "softplus", "sub", "tanh",
}  # fmt: skip

log = logging.getLogger(__name__)


class Windows(NamedTuple):
    """Squares in which pictures may differ from their image, one per picture.

    Attributes:
        corners: First row and column of each picture's square, Int (count, 2). Squares do not extend beyond the image.
        side: Side of the squares in pixels.
    """

    corners: Tensor
    side: int


class _UnsuitableError(Exception):
    """Error with the reason why crops cannot be used."""


def windowed(
    classifier: Classifier,
    forward: Callable[[Images], Tensor],
    images: Images,
    draw: Callable[[Tensor, Tensor], Images],
    windows: Windows,
) -> Callable[[Tensor, Tensor], Tensor]:
    """Return a function (samples, pictures) that returns the logits of the pictures from `draw(samples, pictures)`.

    Args:
        classifier: The classifier.
        forward: Faster copy of the classifier, or the classifier itself.
        images: The images.
        draw: Function (samples, pictures) that returns these pictures; see `passes.Pass`.
        windows: Windows in which each picture may differ from its image.
    """
    latest: tuple[int, _Unchanged | None] = (-1, None)  # feature maps of the image whose passes are running

    def in_part(unchanged: _Unchanged, drawn: Images, pictures: Tensor) -> Tensor:
        """Return the logits of pictures, computed on crops."""
        logits = forward(unchanged.patched(drawn, windows.corners[pictures], windows.side))
        return logits.whole() if isinstance(logits, Patched) else logits

    def checked(samples: Tensor) -> _Unchanged | None:
        """Return the image with its feature maps, or None if its pictures must be computed in full."""
        hooks = [(module._forward_hooks, module._forward_pre_hooks) for module in classifier.modules()]
        if any(chain(*hooks, [_global_forward_hooks, _global_forward_pre_hooks])):
            _note(classifier, _UnsuitableError("its layers have hooks"))
            return None
        pictures = torch.tensor([0, (len(windows.corners) - 1) // 2])
        drawn, unchanged = draw(samples, pictures), _Unchanged(images[samples])
        try:
            with torch.random.fork_rng(devices=[]):
                exact, products = _recorded_products(lambda: forward(drawn))
                logits = in_part(unchanged, drawn, pictures)
            off = float((logits - exact).masked_fill(logits == exact, 0).abs().max())  # infinities may be equal
            if not off <= TOLERANCE * float(exact[exact.isfinite()].abs().max()):
                raise _UnsuitableError("the logits would differ from those of the full computation")
            if unchanged.saved < SAVING * products:
                raise _UnsuitableError(
                    "the first layers are not convolutions, or windows affect the whole map after a few layers"
                )
        except Exception as error:
            _note(classifier, error)
            return None
        return unchanged

    @handlers_end_work()
    def logits_of(samples: Tensor, pictures: Tensor) -> Tensor:
        """Return the logits of pictures, computed on crops if the check of their image allows it."""
        nonlocal latest
        drawn, sample = draw(samples, pictures), int(samples[0])
        if len(samples) > 1:
            return forward(drawn)
        if latest[0] != sample:
            latest = sample, None  # frees the feature maps of the previous image
            latest = sample, checked(samples)
        if latest[1] is not None:
            try:
                return latest[1].unified(in_part(latest[1], drawn, pictures), drawn)
            except Exception as error:
                _note(classifier, error)
                latest = sample, None
        return forward(drawn)

    is_exact = classifier.device.type == "cpu" and classifier.arithmetic in ("fp32", "fp32, channels last")
    pixels = images.shape[2] * images.shape[3]
    is_large = pixels >= SMALLEST and pixels * len(windows.corners) >= FEWEST
    if is_exact and is_large and forward is not classifier:
        return logits_of
    return lambda samples, pictures: forward(draw(samples, pictures))


def _note(classifier: Classifier, error: Exception) -> None:
    """Log, once per classifier, why pictures are computed in full."""
    classifier.halved += is_out_of_memory(error)  # changes the last bits
    line = f"{classifier.id} computes covered pictures in full, instead of only the parts that windows affect: {error}"
    _log_once(line.splitlines()[0])


@cache
def _log_once(line: str) -> None:
    log.info("%s", line)


def _recorded_products(forward: Callable[[], Tensor]) -> tuple[Tensor, float]:
    """Return the logits of a pass, and the number of multiplications in its convolutions for one picture."""
    logits, calls = recorded_calls(forward)
    if calls is None:
        raise _UnsuitableError("its Python code reads a tensor value")
    return logits, sum(_products(out, args[1]) for name, args, _, out in calls if name.startswith("aten.convolution."))


def _products(output: Any, weight: Tensor) -> float:
    return output[0].numel() * weight[0].numel()


class _Unchanged:
    """An image and its feature maps, each computed once.

    Attributes:
        image: The image, (1, 3, H, W).
        kept: ((operation, arguments as a string), arguments, output) for each operation on `Patched`, in order.
        position: Number of operations that the current pass has made so far.
        saved: Number of multiplications per picture that convolutions have saved.
        logits: Logits of the first picture that was equal to the image, (1, K).
    """

    def __init__(self, image: Images):
        self.image = image.contiguous(memory_format=torch.channels_last)
        self.kept: list[tuple[tuple, tuple, Any]] = []
        self.position, self.saved = 0, 0.0
        self.logits: Tensor | None = None

    def patched(self, drawn: Images, corner: Tensor, side: int) -> "Patched":
        """Start a pass, and return the pictures as a `Patched` that stores only their windows."""
        self.position = 0
        rows, columns = (corner[:, :, None] + torch.arange(side)).unbind(1)
        crop = drawn.permute(0, 2, 3, 1)[torch.arange(len(drawn))[:, None, None], rows[:, :, None], columns[:, None]]
        return Patched(self, self.image, crop.permute(0, 3, 1, 2), corner)

    def unified(self, logits: Tensor, drawn: Images) -> Tensor:
        """Give all pictures that equal the image identical logits, because rounding may differ between them."""
        equal = (drawn == self.image).flatten(1).all(dim=1)
        if self.logits is None and bool(equal.any()):
            self.logits = logits[equal][:1]
        return logits if self.logits is None else torch.where(equal[:, None], self.logits, logits)

    def output(self, func: Any, args: tuple, kwargs: dict) -> Any:
        """Return an operation's output for the unchanged image.

        It is taken from the previous pass if nothing has changed.
        """
        plain = _replaced(Patched, lambda patched: patched.features, (args, kwargs))
        # Arguments are kept alive, so no other tensor can have the same id.
        key = func, repr(_replaced(Tensor, lambda tensor: (id(tensor), tensor._version), plain))
        if self.position == len(self.kept) or self.kept[self.position][0] != key:
            self.kept[self.position :] = [(key, plain, func(*plain[0], **plain[1]))]
        self.position += 1
        return self.kept[self.position - 1][2]


class Patched(Tensor):
    """Feature maps (n, C, H, W), each of which differs from the image's feature map only inside a crop.

    Attributes:
        unchanged: The image.
        features: Feature maps of the image, (1, C, H, W).
        crop: Crops, (n, C, h, w).
        corner: First row and column of each crop, Int (n, 2). Crops do not extend beyond the map.
        pasted: Plain tensor that replaces this object once an operation has needed a plain tensor.
    """

    __torch_function__: Any = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls: Any, unchanged: _Unchanged, features: Tensor, crop: Tensor, corner: Tensor) -> "Patched":
        """Return a tensor without storage, in channels-last layout."""
        _, channels, height, width = features.shape
        strides = (channels * height * width, 1, width * channels, channels)
        size = (len(crop), channels, height, width)
        return Tensor._make_wrapper_subclass(cls, size, strides=strides, dtype=features.dtype, device=features.device)

    def __init__(self, unchanged: _Unchanged, features: Tensor, crop: Tensor, corner: Tensor):
        self.unchanged, self.features, self.crop, self.corner = unchanged, features, crop, corner
        self.pasted: Tensor | None = None

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        """Compute an operation on crops, or on plain tensors."""
        if torch.Tag.inplace_view in func.tags:
            raise _UnsuitableError(f"{func} changes a shape in place")
        output = _on_crops(func, args, kwargs or {})
        if output is None:
            args, kwargs = _replaced(Patched, Patched.whole, (args, kwargs or {}))
            output = func(*args, **kwargs)
        return output

    def is_small(self) -> bool:
        """Return whether the crops are small enough to save time."""
        return self.pasted is None and self.crop[0, 0].numel() <= LARGEST * self.features[0, 0].numel()

    def whole(self) -> Tensor:
        """Return plain feature maps.

        Each call returns the same tensor, because operations may write to it or to its views.
        """
        if self.pasted is None:
            self.pasted = self.cut(torch.zeros_like(self.corner), self.shape[2:])
        return self.pasted

    def cut(self, corner: Tensor, size: Sequence[int], fill: float = 0.0) -> Tensor:
        """Return a rectangle of each picture's map, filled with `fill` outside the map."""
        if tuple(size) == tuple(self.crop.shape[2:]) and torch.equal(corner, self.corner):
            return self.crop
        (height, width), (_, _, *of_map), (_, _, *of_crop) = size, self.shape, self.crop.shape
        # Indices refer to the positions of the image's map, followed by those of all crops and one position with the
        # fill.
        parts = [part.permute(0, 2, 3, 1).flatten(0, 2) for part in (self.features, self.crop)]
        source = torch.cat([*parts, parts[0].new_full((1, self.shape[1]), fill)])
        in_map, index_in_map = _positions(corner, size, of_map)
        in_crop, index_in_crop = _positions(corner - self.corner, size, of_crop)
        index_in_crop += len(parts[0]) + of_crop[0] * of_crop[1] * torch.arange(len(corner))[:, None, None]
        index = torch.where(in_crop, index_in_crop, torch.where(in_map, index_in_map, len(source) - 1))
        return source.index_select(0, index.flatten()).view(len(corner), height, width, -1).permute(0, 3, 1, 2)


def _positions(corner: Tensor, size: Sequence[int], of_map: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Return (whether each position of a rectangle is inside a map, its index in the map), both (n, height, width)."""
    rows = (corner[:, :1] + torch.arange(size[0]))[:, :, None]
    columns = (corner[:, 1:] + torch.arange(size[1]))[:, None]
    within = (rows >= 0) & (rows < of_map[0]) & (columns >= 0) & (columns < of_map[1])
    return within, rows * of_map[1] + columns


def _replaced(kind: type, function: Callable[[Any], Any], arguments: Any) -> Any:
    """Replace each value of a type in arguments by function(value). This is faster than torch's `tree_map_only`."""
    if isinstance(arguments, kind):
        return function(arguments)
    if isinstance(arguments, list | tuple):
        return type(arguments)([_replaced(kind, function, value) for value in arguments])
    if isinstance(arguments, dict):
        return {name: _replaced(kind, function, value) for name, value in arguments.items()}
    return arguments


def _on_crops(func: Any, args: tuple, kwargs: dict) -> Any:
    """Return the output of an operation as `Patched`, or None if it cannot be computed on crops."""
    inputs: list[Patched] = []
    _replaced(Patched, inputs.append, (args, kwargs))
    x, (package, name, overload) = inputs[0], str(func).split(".")
    in_place = name.endswith("_") and args[0] is x
    if package != "aten" or not all(patched.is_small() for patched in inputs):
        return None  # an operation of another package may have the same name as one of torch
    if func._schema.is_mutable and not in_place:
        return None
    name = name.removesuffix("_")
    if name in ELEMENTWISE and _is_elementwise(name, inputs, args, kwargs):
        func = getattr(getattr(torch.ops.aten, name), overload) if in_place else func
        output = _elementwise(func, inputs, args, kwargs)
        if not in_place:
            return output
        if (output.shape, output.dtype) != (x.shape, x.dtype):
            return None
        x.features, x.crop, x.corner = output.features, output.crop, output.corner
        return x
    if in_place or args[0] is not x or len(inputs) > 1 or kwargs:
        return None
    if name == "convolution" and not args[6]:
        _, weight, bias, stride, padding, dilation, *others = args
        features, kernel = x.unchanged.output(func, args, {}), weight.shape[2:]
        output = _sliding(x, features, kernel, stride, padding, dilation, 0.0,
                          lambda cut: func(cut, weight, bias, stride, [0, 0], dilation, *others))  # fmt: skip
        share = output.crop[0, 0].numel() / features[0, 0].numel()
        x.unchanged.saved += (1 - share) * _products(features, weight)
        return output
    if name == "max_pool2d_with_indices":
        kernel, stride, padding, dilation = (*args[1:5], *((), (0,), (1,))[len(args) - 2 :])[:4]
        kernel, stride, padding, dilation = (
            list(pair) * (3 - len(pair)) for pair in (kernel, stride or kernel, padding, dilation)
        )
        output = _sliding(x, x.unchanged.output(func, args, {})[0], kernel, stride, padding, dilation, -torch.inf,
                          lambda cut: func(cut, kernel, stride, [0, 0], dilation)[0])  # fmt: skip
        return output, torch.empty(0, dtype=torch.int64)  # any use of the indices raises an error
    if name == "constant_pad_nd" and len(args[1]) <= 4 and min(args[1]) >= 0:
        before = torch.tensor([(*args[1], 0, 0)[2], args[1][0]])
        return Patched(x.unchanged, x.unchanged.output(func, args, {}), x.crop, x.corner + before)
    if name in NORMS and (name != NORMS[0] or not args[5]):
        features, *statistics = x.unchanged.output(func, args, {})
        return Patched(x.unchanged, features, func(x.crop, *args[1:])[0], x.corner), *statistics
    return None


def _is_elementwise(name: str, inputs: list[Patched], args: tuple, kwargs: dict) -> bool:
    """Return whether all maps have the same size and every other tensor has one value or one value per channel."""
    if name == "_to_copy" and kwargs.get("memory_format") == torch.contiguous_format:
        return False
    if name == "cat" and (args[1:] != (1,) or len(inputs) < len(args[0])):
        return False
    tensors: list[Tensor] = []
    _replaced(Tensor, tensors.append, (args, kwargs))
    others = [tensor.shape for tensor in tensors if not isinstance(tensor, Patched)]
    return len({(patched.shape[0], *patched.shape[1 + (name == "cat") :]) for patched in inputs}) == 1 and all(
        len(shape) <= 4 and (shape.numel() == 1 or (len(shape) >= 3 and shape.numel() == shape[-3])) for shape in others
    )


def _elementwise(func: Any, inputs: list[Patched], args: tuple, kwargs: dict) -> Patched:
    """Return the output of an elementwise function, on the smallest crops that contain the crops of all inputs."""
    first = torch.stack([patched.corner for patched in inputs]).amin(0)
    ends = [patched.corner + torch.tensor(patched.crop.shape[2:]) for patched in inputs]
    corner, size = _spans(first, torch.stack(ends).amax(0) - 1, inputs[0].shape[2:])
    features = inputs[0].unchanged.output(func, args, kwargs)
    args, kwargs = _replaced(Patched, lambda patched: patched.cut(corner, size), (args, kwargs))
    return Patched(inputs[0].unchanged, features, func(*args, **kwargs), corner)


def _spans(first: Tensor, last: Tensor, of_map: Sequence[int]) -> tuple[Tensor, list[int]]:
    """Return (corners, size) of equally large rectangles in a map that contain the positions `first` to `last`."""
    most = torch.tensor(of_map) - 1
    first, last = (positions.clamp(min=0).minimum(most) for positions in (first, last))
    size = (last - first).amax(0).clamp(min=0) + 1
    return first.minimum(most + 1 - size), size.tolist()


def _sliding(
    x: Patched,
    features: Tensor,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    fill: float,
    apply: Callable[[Tensor], Tensor],
) -> Patched:
    """Return the output of an operation whose kernel slides over the maps.

    Args:
        x: The maps.
        features: The operation's output for the unchanged image.
        kernel: Rows and columns of the kernel.
        stride: Stride of rows and columns.
        padding: Padding before the first row and column.
        dilation: Dilation of rows and columns.
        fill: Value of the padding.
        apply: The operation without padding.
    """
    step, before = torch.tensor(stride), torch.tensor(padding)
    reach = torch.tensor(dilation) * (torch.tensor(kernel) - 1)
    start = x.corner + before
    first = -((reach - start) // step)  # the first output whose kernel ends at or after the start of the crop
    last = (start + torch.tensor(x.crop.shape[2:]) - 1) // step
    corner, size = _spans(first, last, features.shape[2:])
    needed = ((torch.tensor(size) - 1) * step + reach + 1).tolist()
    return Patched(x.unchanged, features, apply(x.cut(corner * step - before, needed, fill)), corner)
