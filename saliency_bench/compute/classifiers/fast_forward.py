"""Run faster forward passes without gradients, for methods that only use a network's outputs.

A convolutional network runs as a private copy in channels-last layout, with each batch norm folded into the convolution
before it. On the CPU, this reduces the time of ResNet-18 to 70 %, and logits differ by about 1e-6. The copy duplicates
the convolutions' weights and shares all other weights with the caller's classifier, which is not changed. With
`load_classifier(..., precision="bf16")` (`run --precision bf16`) the copy computes in bfloat16, with weights that are
cast once. On a CPU with instructions for bfloat16 (avx512_bf16, amx_bf16) the copy takes 35 % of the classifier's time
in float32, and its logits are off by 0.3 % of their range. For a trained ResNet, the maps of occlusion, rise, lime and
scorecam were off by at most 2.4 % of their range (median: 0.7 %). On a GPU, only the memory layout and the cast save
time. There, no copy is created in float32, and batch norms are not folded (see `GAINING` and `FOLDING`).

A batch norm is folded only if one recorded pass shows that nothing else reads its convolution's output or the weights
of the two layers. Nothing is folded if the Python code reads a tensor value, because a different image may then take a
different path through the code. The logits of the copy and the classifier are compared for two test pictures that
depend only on the image size. In float32 they may differ by up to `TOLERANCE`. In the requested precision the copy's
error may be up to twice the classifier's error, or one rounding error of the largest logit. If the copy is not accurate
enough or not faster, the classifier itself is used, and the log gives the reason. The choice depends on the network and
the image size, never on the images, so identical batches have bit-identical results.

With `load_classifier(..., compile=True)` (`run --compile`) the copy is compiled. On an H100 in bf16, this reduces the
time of ResNet-18 to 66 % and the time of ResNet-50 to 58 %. On a CPU, the time of ResNet-18 is between 76 and 89 % of
the original. Compiling takes up to 20 seconds for each image size on a GPU, and more on a CPU. A network that cannot be
compiled as a whole raises UserError.

Making a copy costs as much as a few passes, so a classifier reuses its last copy until one of these changes: image
size, precision, layout, a weight, or a training flag, hook, replaced method or plain attribute of a module. Weights are
compared by the sum of their bits, because writing to `.data` leaves no other trace. This check costs a fraction of one
pass. Other values that a forward pass reads, such as a list in a module, are not checked here. A run detects changes of
these values with its probe (`compute/probe.py`).
"""

import copy
import logging
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from contextlib import nullcontext
from itertools import chain
from types import FunctionType, MethodType
from typing import Any, TypeGuard, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from saliency_bench.compute.classifiers.classifier import DTYPES, PRECISIONS, Classifier
from saliency_bench.errors import UserError, one_line
from saliency_bench.types import Images
from saliency_bench.utils.devices import is_out_of_memory
from saliency_bench.utils.interrupts import handlers_end_work
from saliency_bench.utils.seeds import seed_of, uniform
from saliency_bench.utils.untouched import compiling, untouched

CHANGING = ("passes", "halved", "activation", "_gives_logits")  # attributes of a classifier that a pass changes
PLAIN = (bool, int, float, str, type(None), FunctionType, MethodType)
TOLERANCE = 1e-4  # largest difference of logits, relative to their range if the range is below 1

# Precisions in which a copy is faster. In channels-last layout on an H100, ResNet-50 takes 1.19 times as long in
# float32 and 0.83 times as long in tf32.
GAINING = {"cpu": PRECISIONS, "cuda": ("tf32", *DTYPES)}
# Whether batch norms are folded. cuDNN adds the bias of a folded convolution in a separate kernel: on an H100 in bf16,
# ResNet-50 takes 1.12 times as long as with its batch norms, ResNet-18 1.04 times.
FOLDING = {"cpu": True, "cuda": False}

# Operations that pass tensor values or their number to Python, given by tags of torch's operations and by function
# names.
READING = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
READERS = {"tolist", "numpy", "__array__", "__dlpack__", "data_ptr", "untyped_storage"}

Layer = TypeVar("Layer", bound=nn.Module)
log = logging.getLogger(__name__)


def fast_forward(classifier: nn.Module, images: Images) -> Callable[[Images], Tensor]:
    """Return a function images -> logits for images of this size: the classifier, or a faster equivalent copy.

    Passes through the copy are added to the classifier's pass count. Call `fast_forward` and the returned function
    while the network is in evaluation mode. Call the returned function without gradients.
    """
    if not isinstance(classifier, Classifier):
        return classifier
    if not (classifier.compiled or classifier.precision in GAINING[images.device.type]):
        return classifier
    with untouched(), torch.no_grad():  # inference mode would record other operations
        state = _state(classifier, images)
        if _copies.get(classifier, (None,))[0] != state:
            _copies[classifier] = state, _fused_copy(classifier, images)
        fused = _copies[classifier][1]
    if fused is None:
        return classifier

    def forward(images: Images) -> Tensor:
        classifier.passes += len(images)
        return _passed(fused, images)

    return forward


_copies: WeakKeyDictionary[Classifier, tuple[Hashable, Classifier | None]] = WeakKeyDictionary()


def _state(classifier: Classifier, images: Images) -> Hashable:
    """Return everything that a copy depends on. Equal states produce equal copies."""
    tensors = list(chain(classifier.parameters(), classifier.buffers()))
    by_device: dict[torch.device, list[Tensor]] = {}
    for tensor in tensors:
        by_device.setdefault(tensor.device, []).append(_bits(tensor))
    sums = tuple(tuple(torch.stack(of_device).tolist()) for of_device in by_device.values())  # one read per device
    modules = tuple((id(module), id(type(module)), *_attributes(module)) for module in classifier.modules())
    settings = images.shape[1:], images.device, classifier.arithmetic
    return settings, sums, tuple((tensor.shape, tensor.dtype, tensor.device) for tensor in tensors), modules


def _bits(tensor: Tensor) -> Tensor:
    """Read a tensor's bytes as 64-bit integers and return their sum modulo 2^64, Int64 ()."""
    content = tensor.detach().contiguous().flatten().view(torch.uint8)
    whole = len(content) // 8 * 8
    eights = content[:whole] if content.storage_offset() % 8 == 0 else content[:whole].clone()
    total = eights.view(torch.int64).sum()
    return total if whole == len(content) else total + content[whole:].sum(dtype=torch.int64)


def _attributes(module: nn.Module) -> Iterator[Hashable]:
    """Yield a module's plain attributes, including its training flag, and the ids of its forward hooks."""
    for name, value in vars(module).items():
        if name in CHANGING:
            continue
        if isinstance(value, PLAIN) or (isinstance(value, tuple) and all(isinstance(item, PLAIN) for item in value)):
            yield name, value
        elif name in ("_forward_hooks", "_forward_pre_hooks"):
            yield name, *map(id, value.values())


@handlers_end_work()
def _fused_copy(classifier: Classifier, images: Images) -> Classifier | None:
    """Return a faster copy of a classifier, or None if there is no copy that is both faster and accurate enough.

    Raises:
        UserError: The settings require compilation, but the classifier cannot be compiled.
    """
    if not classifier.compiled and sum(isinstance(module, nn.Conv2d) for module in classifier.modules()) < 2:
        return None
    passes, precision = classifier.passes, classifier.precision
    try:
        fused, why = _checked_copy(classifier, _probe(images), precision)
    except Exception as error:  # a network that cannot be recorded or copied is used without a copy
        message = str(error).strip().partition("\n\n")[0]  # torch.compile appends hints for developers
        fused, why = None, f"{type(error).__name__}: {one_line(message, 200)}"
        classifier.halved += is_out_of_memory(error)  # counted because it changes the last bits
    finally:
        classifier.passes, classifier.precision = passes, precision
    if why and classifier.compiled:
        raise UserError(
            f"{classifier.id} cannot run in compiled form here ({why}); run without --compile, and choose a "
            "different --out"
        )
    if why:
        log.info("%s runs without a faster copy: %s", classifier.id, why)
    return fused


def _checked_copy(classifier: Classifier, probe: Images, precision: str) -> tuple[Classifier | None, str]:
    """Return (copy, ""), or (None, reason for rejecting the copy).

    This changes the classifier's `passes` and `precision`.
    """
    classifier.precision = "fp32"  # precise enough to expose a copy that differs
    folds = FOLDING[probe.device.type] or classifier.compiled
    exact, pairs = _recorded(classifier, probe) if folds else (classifier(probe), [])
    fused = _folded(classifier, pairs)
    finite = exact[exact.isfinite()]  # a masked-out class has a logit of -infinity
    allowed = TOLERANCE * min(1.0, float(finite.max() - finite.min()))
    off = _distance(fused(probe), exact)
    if not off <= allowed:
        return None, f"the logits of the copy are off by {off:.1e}"
    if precision != "fp32":
        classifier.precision = fused.precision = precision
        _cast(fused)
    if classifier.compiled:
        _compile(fused)
    if precision != "fp32" or classifier.compiled:
        off, usual = _distance(_passed(fused, probe), exact), _distance(classifier(probe), exact)
        rounding = torch.finfo(DTYPES.get(precision, torch.float32)).eps * float(finite.abs().max())
        if not off <= max(2 * usual, rounding) + allowed:
            return (
                None,
                f"in {classifier.arithmetic} the logits of the copy are off by {off:.1e}, the classifier's own logits "
                f"by {usual:.1e}",
            )
    return fused, ""


def _compile(fused: Classifier) -> None:
    """Compile the network for any batch size."""
    import torch._inductor.config as inductor  # imported here because it takes half a second

    torch.compiler.reset()  # torch stores only a few compiled networks per class, and then stops compiling
    options: dict[str, Any] = {"deterministic": True} if hasattr(inductor, "deterministic") else {}
    # With `fullgraph`, a network that cannot be compiled as a whole raises an error instead of running in parts.
    compiled: Any = torch.compile(fused.model, fullgraph=True, options=options)
    compiled.register_forward_pre_hook(lambda _, inputs: torch._dynamo.maybe_mark_dynamic(inputs[0], 0))
    fused.model = compiled


def _passed(fused: Classifier, images: Images) -> Tensor:
    with compiling() if fused.compiled else nullcontext():
        return fused(images)


def _distance(logits: Tensor, exact: Tensor) -> float:
    """Return the largest absolute difference between logits. Equal infinite logits do not differ."""
    return float((logits - exact).masked_fill(logits == exact, 0).abs().max())


def _cast(fused: Classifier) -> None:
    """Cast the weights of convolutions and linear layers once, because autocast would cast them in every pass."""
    dtype = DTYPES.get(fused.precision, torch.float32)
    for module in fused.modules():
        if _is_plain(module, nn.Conv2d) or _is_plain(module, nn.Linear):
            for name, parameter in list(module.named_parameters(recurse=False)):
                setattr(module, name, nn.Parameter(parameter.detach().to(dtype), requires_grad=False))


def _probe(images: Images) -> Images:
    """Return two noise pictures in [0, 1] with the images' size."""
    shape = (2, *images.shape[1:])
    values = uniform(seed_of("probe"), int(torch.Size(shape).numel()))
    return torch.from_numpy(values.reshape(shape)).to(images)


class _Record(TorchDispatchMode):
    """Record of the operations in a forward pass. It keeps inputs and outputs alive, so their ids stay unique."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, tuple, dict, object]] = []
        self.reads = False  # whether Python read a value or a count, so that images may take different paths

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        self.calls.append((str(func), args, kwargs or {}, output))
        self.reads |= not READING.isdisjoint(func.tags)
        return output


class _Reads(TorchFunctionMode):
    """Detector of Python code that reads a tensor without a torch operation."""

    def __init__(self, record: _Record):
        super().__init__()
        self.record = record

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.record.reads |= getattr(func, "__name__", "") in READERS
        return func(*args, **(kwargs or {}))


def recorded_calls(forward: Callable[[], Tensor]) -> tuple[Tensor, list[tuple[str, tuple, dict, object]] | None]:
    """Return (logits, operations) of a pass. The operations are None if the Python code reads a tensor value.

    An operation is (name, arguments, keyword arguments, output).
    """
    with _Record() as record, _Reads(record):
        logits = forward()
    return logits, None if record.reads else record.calls


def _recorded(classifier: Classifier, probe: Images) -> tuple[Tensor, list[tuple[str, str]]]:
    """Return the logits of the probe, and the (convolution, batch norm) names of the pairs to fold."""
    logits, calls = recorded_calls(lambda: classifier(probe))
    if calls is None:
        return logits, []
    uses = Counter(id(leaf) for _, args, kwargs, _ in calls for leaf in tree_leaves((args, kwargs)))
    # A convolution has the arguments (input, weight, ...), a batch norm (input, weight, bias, running mean, ...).
    # A norm is identified by its running mean, and its convolution by the output tensor that the norm receives.
    weights = {id(output): args[1] for name, args, _, output in calls if name.startswith("aten.convolution.")}
    inputs = {id(args[3]): args[0] for name, args, _, _ in calls if "batch_norm" in name and len(args) > 4}
    modules = dict(classifier.named_modules())
    by_weight = {id(module.weight): name for name, module in modules.items() if _is_plain(module, nn.Conv2d)}
    pairs = []
    for name, norm in modules.items():
        if not _is_plain(norm, nn.BatchNorm2d) or norm.running_mean is None or id(norm.running_mean) not in inputs:
            continue
        normalised = inputs[id(norm.running_mean)]
        weight = weights.get(id(normalised))
        tensors = [normalised, weight, norm.running_mean, norm.running_var, norm.weight, norm.bias]
        if id(weight) in by_weight and all(uses[id(tensor)] == 1 for tensor in tensors if tensor is not None):
            pairs.append((by_weight[id(weight)], name))
    return logits, pairs


def _is_plain(module: nn.Module, kind: type[Layer]) -> TypeGuard[Layer]:
    """Return whether a module behaves like its class: no subclass, parametrisation, hook or replaced method."""
    return (
        type(module) is kind
        and "forward" not in vars(module)
        and not (module._forward_hooks or module._forward_pre_hooks)
    )


def _folded(classifier: Classifier, pairs: list[tuple[str, str]]) -> Classifier:
    """Return a channels-last copy with the pairs folded. Only the convolutions have their own weights."""
    shared = chain(classifier.parameters(), classifier.buffers())
    memo: dict[int, object] = {id(tensor): tensor for tensor in shared}
    fused = copy.deepcopy(classifier, memo | {id(classifier.frame): classifier.frame})
    for convolution, norm in pairs:
        pair: Any = (fused.get_submodule(convolution), fused.get_submodule(norm))
        fused.set_submodule(convolution, fuse_conv_bn_eval(*pair))
        fused.set_submodule(norm, nn.Identity())
    for module in fused.modules():
        if _is_plain(module, nn.Conv2d):
            weight = module.weight.detach().contiguous(memory_format=torch.channels_last)
            module.weight = nn.Parameter(weight, requires_grad=False)
    fused.channels_last = True
    return fused
