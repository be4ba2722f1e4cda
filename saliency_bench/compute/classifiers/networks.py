"""Find the logits in a network's output, its number of input channels (one or three), and its structure."""

import io
import pickle
import re
import warnings
import zipfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from types import FunctionType
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from saliency_bench.compute.classifiers.content import ContentHasher, Place, UnhashableError, names_in
from saliency_bench.data.geometry import Geometry
from saliency_bench.errors import UserError, one_line
from saliency_bench.types import Images
from saliency_bench.utils.messages import complain
from saliency_bench.utils.source_code import is_library

HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
NAMES = ("children", "weights")  # entries of a structure that contain lists of names
UNSTABLE = "unstable: "  # prefix in place of a hash, followed by the reason why a value cannot be hashed
# Entries of a transformers config that may differ between otherwise identical networks.
VOLATILE = ("_name_or_path", "transformers_version", "architectures", "dtype", "torch_dtype", "_commit_hash")
# Attributes that do not affect results: torch's own, and library attributes on origin, training and compilation.
NO_SETTINGS = {
    *vars(nn.Module()),
    "_compiled_call_impl",
    "_is_hf_initialized",
    "generation_config",
    "warnings_issued",
    "grad_checkpointing",
    "gradient_checkpointing",
    "_gradient_checkpointing_func",
    "_trainer",
    "_fabric",
    "_hf_hook",
    "_old_forward",
    "hf_device_map",
}
# Attributes in which libraries store the origin of a network. They are left out unless a user's code names them.
ORIGIN = {"name_or_path", "pretrained_cfg", "default_cfg", "qconfig"}
FEW = 4  # elements; library buffers up to this size may contain arguments, such as mean and std, and are hashed
SIDE = 224  # size of the trial picture for a network without a fixed size
GREY = (0.299, 0.587, 0.114)  # ITU-R 601, as in PIL's mode "L" and torchvision's Grayscale
Select = Callable[[Any], Tensor]  # output of a network -> logits (B, K)


def logits_in(output: Any, select: Select | None, name: str) -> Tensor:
    """Return the logits (B, K) in a network's output: the result of `select`, or its `logits`, or the output itself.

    Raises:
        UserError: There are no logits. The message describes the output and the fix.
    """
    logits = _selected(output, select, name)
    if isinstance(logits, Tensor) and logits.ndim == 2 and logits.shape[1] >= 1:
        return logits
    if select is not None:
        raise UserError(f"the function logits= of {name} returns {_describe(logits)} instead of logits (B, K)")
    raise UserError(f"{name} returns {_describe(output, logits)} instead of logits (B, K); {_fix(output, logits)}")


def _selected(output: Any, select: Select | None, name: str) -> Any:
    """Return the result of `select`, else the `logits` of a transformers output, else the output itself."""
    if select is None:
        return output.get("logits") if isinstance(output, Mapping) else getattr(output, "logits", output)
    try:
        return select(output)
    except UserError:
        raise
    except (TypeError, KeyError, AttributeError, IndexError, ValueError) as error:
        reason = f"{type(error).__name__}: {one_line(error, 200)}"
        raise UserError(
            f"the function logits= fails on the output of {name}, {_describe(output)} ({reason})"
        ) from error


def _describe(output: Any, logits: Any = None) -> str:
    if isinstance(shown := output if isinstance(output, Tensor) else logits, Tensor):
        return str(tuple(shown.shape))
    if isinstance(output, Mapping):
        return f"a dict of {', '.join(map(str, output))}"
    return f"a {type(output).__name__} of {len(output)}" if isinstance(output, tuple | list) else type(output).__name__


def _fix(output: Any, logits: Any) -> str:
    """Return the fix to suggest for an output that is not logits, based on its type and shape."""
    parts = _parts(output)
    first = output[0] if isinstance(output, tuple | list) and output else output
    if {"boxes", "pred_boxes"} & {key for key, _ in [*parts, *_parts(first)]}:
        return "it is an object detector; use a classifier of whole images"
    for key, value in parts:
        if isinstance(value, Tensor) and value.ndim == 2 and value.is_floating_point():
            return f"select the logits by key: load_classifier(model, logits=lambda out: out[{key!r}], ...)"
    tensor = logits if isinstance(logits, Tensor) else next((v for _, v in parts if isinstance(v, Tensor)), None)
    if tensor is None or tensor.ndim not in (1, 4):
        return (
            "call load_classifier(model, logits=..., ...) with a function that takes this output and returns the logits"
        )
    if tensor.ndim == 4:
        where = "out" if tensor is output else f"out[{next(k for k, v in parts if v is tensor)!r}]"
        return (
            "the network may lack its classification head, or it may segment images; if it returns one map per class, "
            f"use the mean of each map as the logit: load_classifier(model, logits=lambda out: {where}.mean((2, 3)), "
            "...)"
        )
    if not tensor.is_floating_point():
        return "pass the network without the argmax at its end"
    return (
        "for one logit per image, use load_classifier(model, logits=lambda out: out[:, None], "
        'activation="sigmoid", ...)'
    )


def _parts(output: Any) -> list[tuple[Any, Any]]:
    """Return the (key, value) pairs of an output with several parts, or [] for any other output."""
    if isinstance(output, Mapping):
        return list(output.items())
    return list(enumerate(output)) if isinstance(output, tuple | list) else []


def grey(images: Images) -> Tensor:
    """Convert RGB images to grey, Float (B, 1, H, W). If the three channels are equal, the result is the first one."""
    return (images * images.new_tensor(GREY).view(1, 3, 1, 1)).sum(dim=1, keepdim=True)


def _takes_grey(model: nn.Module, size: tuple[int, int]) -> bool:
    """Return whether a network takes images with one channel, judging by its error message for three channels.

    The test runs only if the first layer is linear, a convolution with one channel, or not visible (TorchScript).
    """
    if hasattr(config := getattr(model, "config", None), "num_channels"):
        return cast(Any, config).num_channels == 1
    first = next((module for module in model.modules() if isinstance(module, nn.Conv2d | nn.Linear)), None)
    if isinstance(first, nn.Conv2d) and first.in_channels != 1:
        return False
    if first is None and not isinstance(model, torch.jit.ScriptModule):
        return False
    like = next((p for p in model.parameters() if p.is_floating_point()), torch.zeros(()))
    if is_lazy(like):
        return False
    try:
        with torch.no_grad():
            model.eval()(torch.zeros(1, 3, *size, device=like.device, dtype=like.dtype))
    except Exception as error:  # any other error is raised again for the first image
        if shapes := re.search(r"cannot be multiplied \(1x(\d+) and (\d+)x", str(error)):
            return int(shapes[1]) == 3 * int(shapes[2])
        return "to have 1 channels, but got 3" in str(error)
    return False


def channels_of(model: nn.Module, name: str, geometry: Geometry, mean: Sequence[float], std: Sequence[float]) -> int:
    """Return a network's number of input channels: 3, or 1 for grey images. A message is printed if it is 1.

    Args:
        model: The network.
        name: Name of the network, for messages.
        geometry: Geometry of the network, which defines the size of the trial picture.
        mean: Mean of the normalisation; must be one number for a network with one channel.
        std: Standard deviation of the normalisation; must be one number for a network with one channel.

    Raises:
        UserError: The network takes one channel, but the mean or standard deviation has three numbers.
    """
    size = geometry.crop or geometry.resize or SIDE
    if not _takes_grey(model, size if isinstance(size, tuple) else (size, size)):
        return 3
    for setting, values in (("mean", mean), ("std", std)):
        if len(set(values)) > 1:
            raise UserError(
                f"{name} takes images with one channel, but {setting} has three values; pass {setting}= as a single "
                "number"
            )
    complain(f"{name} takes images with one channel, so images are converted to grey (0.299 R + 0.587 G + 0.114 B)")
    return 1


def structure_of(model: nn.Module, hasher: ContentHasher) -> dict[str, str]:
    """Describe everything about a network except its weights, for the classifier's digest.

    The structure of each module consists of its class, the names of its children and parameters, its hooks, and its
    public and private attributes. All values are hashed by content (`ContentHasher`): settings, tensors, arrays,
    objects, and functions with the globals that they refer to. Attributes that do not affect results (`NO_SETTINGS`,
    `ORIGIN`) and buffers that a library derives from its settings are left out.

    Args:
        model: The network.
        hasher: Hasher from `hasher_of_networks`. The network's values are recorded in its `places`.

    Returns:
        {"PATH ATTRIBUTE": hash}. For a value whose content differs between processes, the hash is replaced by
        `UNSTABLE` and the reason.
    """
    structure: dict[str, str] = {}
    for path, module, name, value in _network(model, hasher):
        try:
            # Libraries read their dicts by key, but a user's code may depend on the order of a dict.
            modes = ["unordered"] * (is_library(type(module).__module__) and not name.startswith(HOOKS))
            with hasher.inside(*modes, *["whole"] * (name in NAMES)):
                content = hasher.hash_in(module, name, value)
            if content:  # not left out
                structure[f"{path} {name}"] = content
        except UnhashableError as error:
            structure[f"{path} {name}"] = f"{UNSTABLE}{error}"
    return structure


def hasher_of_networks(left_out: Collection[Place] = ()) -> ContentHasher:
    """Return a hasher for `structure_of` that does not hash the values at these places."""
    return ContentHasher(_replacement, left_out)


def _network(model: nn.Module, hasher: ContentHasher) -> list[tuple[str, nn.Module, str, Any]]:
    """Return (path, module, name, value) of every setting of a network. The hasher identifies modules by path."""
    scripts = [module for module in model.modules() if isinstance(module, torch.jit.ScriptModule)]
    inner = {id(module) for script in scripts for module in list(script.modules())[1:]}
    modules = [(path, module) for path, module in model.named_modules() if id(module) not in inner]
    for path, module in modules:
        hasher.names.setdefault(id(module), f"module {path}")
    ignored = NO_SETTINGS | (ORIGIN - _named(model))
    return [(path, module, *setting) for path, module in modules for setting in _settings(module, ignored)]


def _named(model: nn.Module) -> set[str]:
    """Return the names in the parts of the user's own code that a network's `forward` may run."""
    classes = {type(module) for module in model.modules() if not is_library(type(module).__module__)}
    return {word for kind in classes for word in names_in(kind)}


def keeps_gradients(model: nn.Module) -> bool:
    """Return whether the user's own code registers hooks on tensors. These hooks may store gradients."""
    return bool(_named(model) & {"register_hook", "retain_grad"})


def _settings(module: nn.Module, ignored: Collection[str]) -> Iterator[tuple[str, Any]]:
    """Yield (name, value) of everything except weights that a module uses in its computation."""
    if isinstance(module, torch.jit.ScriptModule):
        yield "script", _script(module)
        return
    attributes = vars(module)
    yield "class", type(module)
    yield "children", [(name, child) for name, child in attributes["_modules"].items()]
    yield "weights", [*attributes["_parameters"], *attributes["_buffers"]]
    for hooks in HOOKS:
        yield from ((f"{hooks} {index}", hook) for index, hook in enumerate((attributes.get(hooks) or {}).values()))
    # Pruning and the older weight norms recompute these attributes from other weights before each pass.
    before = [hook for hook in attributes["_forward_pre_hooks"].values() if is_library(type(hook).__module__)]
    derived = {getattr(hook, name, None) for hook in before for name in ("name", "_tensor_name")}
    is_own = not is_library(type(module).__module__)
    for name in attributes["_non_persistent_buffers_set"]:  # `state_dict` leaves these out
        buffer = attributes["_buffers"].get(name)
        if buffer is not None and (is_own or not buffer.is_floating_point() or buffer.numel() <= FEW):
            yield name, buffer
    for name, value in attributes.items():
        if name not in ignored and name not in derived:
            yield name, value
            method = getattr(type(module), value, None) if is_own and isinstance(value, str) else None
            if isinstance(method, FunctionType):  # as in getattr(self, self.mode)
                yield f"{name} {value}", method


def _replacement(hasher: ContentHasher, value: Any) -> bytes | list[tuple[Any, str, Any]] | None:
    """Return what to hash instead of a network, a graph or a transformers config, or None for any other value.

    A transformers config is replaced by the entries that it saves. A module that is not registered, such as one in a
    list, is hashed with its weights.
    """
    if isinstance(value, nn.Module):
        network = [(module, f"{path} {name}", item) for path, module, name, item in _network(value, hasher)]
        weights = [*value.named_parameters(), *value.named_buffers()]
        return [*network, *((value, f"weight {name}", tensor) for name, tensor in weights)]
    if isinstance(value, torch.fx.Graph):
        code = value.python_code("self")
        return hasher.unordered((code.src, code.globals))
    if hasattr(type(value), "to_diff_dict"):
        return hasher.unordered({key: item for key, item in value.to_diff_dict().items() if key not in VOLATILE})
    return None


def _script(module: torch.jit.ScriptModule) -> str:
    """Describe a TorchScript module by the code, attributes and constants in its file.

    These do not depend on the path of the file. The constants of a frozen module are its weights. The module is saved
    to memory first, so only data that torch itself has written is read.
    """
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # torch recommends another format for writing files
        torch.jit.save(module, buffer)
    parts = []
    with zipfile.ZipFile(buffer) as packed:
        for name in packed.namelist():
            _, _, inside = name.partition("/")
            if inside == "data.pkl":
                parts.append(f"attributes {_Attributes(io.BytesIO(packed.read(name))).load()}")
            elif inside.endswith(".py"):
                # Classes share a file or, if their names are mangled, have separate files. Each class is one part.
                for code in filter(None, re.split("^class ", packed.read(name).decode(), flags=re.MULTILINE)):
                    # Constants of a class have no fixed order.
                    lines = sorted(code.splitlines(), key=lambda line: line if ": Final[" in line else "")
                    parts.append("\n".join([inside, *lines]))
            elif inside.startswith("constants/"):
                parts.append(f"{inside} {packed.read(name)!r}")
    return "\n".join(sorted(re.sub(r"[./]_*torch_mangle_\d+", "", part) for part in parts))


class _Attributes(pickle.Unpickler):
    """Unpickler that reads a TorchScript file without calling any function. Tensors are read as shapes."""

    def find_class(self, module: str, name: str) -> Any:
        """Return a stand-in for a class or function that the pickle names."""
        return _shape if name.startswith("_rebuild") else _ScriptObject

    def persistent_load(self, index: Any) -> None:
        """Return None in place of a tensor's storage."""
        return None


def _shape(storage: None, offset: int, size: tuple, *others: object) -> str:
    return f"tensor {size}"


class _ScriptObject:
    """A TorchScript object: its constructor arguments, and its attributes except the training mode."""

    content: tuple = ()

    def __init__(self, *content: object):
        self.content = content

    def __setstate__(self, state: Any) -> None:
        plain = {k: v for k, v in state.items() if k != "training"} if isinstance(state, dict) else state
        self.content = (*self.content, plain)

    def __repr__(self) -> str:
        return repr(self.content)
