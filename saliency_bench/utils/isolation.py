"""What a call leaves changed in a network, its hooks and the global settings of torch and numpy.

    before = Snapshot(network, contents=True)
    ...
    before.changes()        # "the weights of the model (layer1.0.conv1.weight)"; "" where all is as it was
    before.restore()        # hooks and global settings, which can be set back

Tensors are compared by torch's own count of their changes, which misses writes through `.data`, numpy views and some
kernels (the running statistics of batch norm); with `contents` the bits of all weights and buffers are compared too.
What is changed and put back in between is not seen, which harms nobody.

This protects against accidents, not against attackers. Compared are the network, the methods of its modules' classes,
the functions of torch, torch.linalg, torch.fft, torch.special and torch.nn.functional, the methods of tensors, and
`SETTINGS`. Not compared is anything else of the process: functions of numpy or other libraries, classes of torch.nn
that the network has no module of, module globals that its forward reads, environment variables, files.
"""

import zlib
from collections.abc import Callable
from contextlib import suppress
from types import BuiltinFunctionType, FunctionType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules import module as torch_modules
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

HOOKS = (
    "_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks", "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called", "_forward_pre_hooks_with_kwargs",
)  # fmt: skip
GLOBAL_HOOKS = [
    hooks for name, hooks in vars(torch_modules).items() if name.startswith("_global_") and "_hooks" in name
]
BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int32, 16: torch.int32}  # by the bytes of a number
METHODS = (FunctionType, staticmethod, classmethod, property)
FUNCTIONS = [
    (module, name)
    for module in (torch, torch.linalg, torch.fft, torch.special)
    for name, value in vars(module).items()
    if isinstance(value, BuiltinFunctionType)
]
# Most are of the class in C above it, and come into this one when they are overridden.
TENSOR_METHODS = sorted({*vars(Tensor), *vars(torch._C.TensorBase)})
ATTENTION = ("flash_sdp", "mem_efficient_sdp", "math_sdp", "cudnn_sdp")
PIECE = 2**20  # numbers of a tensor that are summed at once


class Snapshot:
    """A network, its hooks and the global settings as they are now. contents: with checksums of weights and buffers."""

    def __init__(self, network: nn.Module, *, contents: bool = False):
        named = list(network.named_modules())
        self.names = [name for name, _ in named]
        self.modules = [module for _, module in named]
        self.state = self._state()
        # Kept alive, so that no other tensor gets the identity of one of these.
        self.tensors = [[*held["_parameters"].items(), *held["_buffers"].items()] for held in map(_held, self.modules)]
        self.checksums = self._checksums() if contents else None
        self.hooks = {id(hooks): dict(hooks) for hooks in self._hooks() if hooks}
        self.global_hooks = [list(hooks) for hooks in GLOBAL_HOOKS]
        self.configs = [(config, dict(vars(config))) for config in self._configs()]
        kinds = {kind for own in set(map(type, self.modules)) for kind in own.__mro__[:-1]}
        self.methods = {kind: _methods(kind) for kind in kinds}
        self.settings = {name: get() for name, (get, _) in SETTINGS.items()}

    def changes(self) -> str:
        """What is not as it was, the first of it, in the words that follow "changed"; "" where all is."""
        now = self._state()
        for kind, before in self.state.items():
            if now[kind] != before:
                return self._difference(kind, now[kind])
        if self.checksums is not None:
            for (place, key), sum_before in self.checksums.items():
                if sum_before is not None and _checksum(dict(self.tensors[place])[key]) not in (sum_before, None):
                    return f"the weights of the model ({self._dotted(place, key)})"
        if [list(hooks) for hooks in GLOBAL_HOOKS] != self.global_hooks:
            return "the hooks of all modules of torch"
        if any(vars(config) != before for config, before in self.configs):
            return "the config of the model"
        for changed, name in self._changed_methods():
            return f"the method {name} of the class {changed.__name__}"
        return next((name for name, (get, _) in SETTINGS.items() if get() != self.settings[name]), "")

    def restore(self) -> None:
        """Set back hooks, configs, methods and global settings; weights and modules stay as they are."""
        hooks = ((now, self.hooks.get(id(now), {})) for now in self._hooks())
        for now, before in (*hooks, *((vars(config), kept) for config, kept in self.configs)):
            if now != before:
                now.clear()
                now.update(before)
        for kind, name in self._changed_methods():
            _put(kind, name, self.methods[kind].get(name))
        for name, (get, put) in SETTINGS.items():
            if get() != self.settings[name]:
                put(self.settings[name])

    def _changed_methods(self) -> list[tuple[type, str]]:
        changed = [(kind, before, _methods(kind)) for kind, before in self.methods.items()]
        return [
            (kind, name)
            for kind, before, now in changed
            if now != before
            for name in sorted(now.keys() | before.keys())
            if now.get(name) is not before.get(name)
        ]

    def _state(self) -> dict[str, list]:
        """{kind: for each module something to compare}, cheap enough for every call."""
        own = [_held(module) for module in self.modules]
        return {
            "a module": [list(held["_modules"].items()) for held in own],
            "the weights": [_marks(held["_parameters"]) + _marks(held["_buffers"]) for held in own],
            "the hooks": [[list(held[name]) for name in HOOKS if held.get(name)] + _tensor_hooks(held) for held in own],
            "the method forward": [(type(module), _held(module).get("forward")) for module in self.modules],
            "a setting": [_constants(module) for module in self.modules],
        }

    def _difference(self, kind: str, now: list) -> str:
        """What differs in a module, in words."""
        place = _first(self.state[kind], now)
        before, after = self.state[kind][place], now[place]
        where = self._dotted(place)
        if kind in ("a module", "the weights", "a setting"):
            former, latter = ({item[0]: item for item in items} for items in (before, after))
            keys = [key for key in (*former, *latter) if former.get(key) != latter.get(key)]
            where = self._dotted(place, keys[0] if keys else "")
        return f"{kind} of the model ({where})"

    def _dotted(self, place: int, *key: str) -> str:
        """The name of a module, or of something in it, as the network inside of a classifier calls it."""
        return ".".join(filter(None, (self.names[place], *key))).removeprefix("model.") or "as a whole"

    def _checksums(self) -> dict[tuple[int, str], int | None]:
        return {(place, key): _checksum(one) for place, held in enumerate(self.tensors) for key, one in held}

    def _hooks(self) -> list[dict]:
        held = [vars(module)[name] for module in self.modules for name in HOOKS if name in vars(module)]
        return held + GLOBAL_HOOKS

    def _configs(self) -> list[Any]:
        """Of `transformers`, whose modules read their config as they compute."""
        configs = [vars(module).get("config") for module in self.modules]
        return list({id(config): config for config in configs if hasattr(config, "to_diff_dict")}.values())


def _held(module: nn.Module) -> dict[str, Any]:
    """The attributes of a module; one that torch.jit.trace made stands for another, which has them."""
    return vars(vars(module).get("_actual_script_module", module))


def _methods(kind: type) -> dict[str, Any]:
    """What a class itself defines, not its parents: functions and properties."""
    return {name: value for name, value in vars(kind).items() if isinstance(value, METHODS)}


def _put(kind: type, name: str, value: Any) -> None:
    """Set an attribute of a class, or delete it where it had none."""
    setattr(kind, name, value) if value is not None else delattr(kind, name)


def _first(before: list, now: list) -> int:
    return next(place for place, (old, new) in enumerate(zip(before, now, strict=True)) if old != new)


def _marks(tensors: dict[str, Tensor | None]) -> list[tuple]:
    """(name, identity, version, storage) of tensors."""
    try:
        return [(key, id(one), one._version, one.data_ptr()) for key, one in tensors.items() if one is not None]
    except RuntimeError:  # made in inference mode, or of a kind without storage: by identity, and by contents
        return [(key, id(one)) for key, one in tensors.items() if one is not None]


def _tensor_hooks(held: dict[str, Any]) -> list[list]:
    return [
        list(one._backward_hooks) for one in held["_parameters"].values() if one is not None and one._backward_hooks
    ]


def _constants(module: nn.Module) -> list[tuple]:
    """What the class of a module declares to be constant: strides, probabilities, a classifier's layer."""
    held = vars(module)
    names = [name for name in getattr(type(module), "__constants__", ()) if name in held]
    return [(name, list(held[name]) if isinstance(held[name], list) else held[name]) for name in names]


def _checksum(tensor: Tensor | None) -> int | None:
    """Of the bits of a tensor; None of one that is sparse or without content, which its version alone speaks for."""
    if tensor is None:
        return None
    try:
        bits = tensor.detach().reshape(-1).view(BITS[tensor.element_size()])
        return zlib.crc32(bits.numpy().data) if bits.device.type == "cpu" else _sum(bits)
    except (RuntimeError, TypeError, KeyError):
        return None


def _sum(bits: Tensor) -> int:
    """Where the bits are on a GPU: of their odd multiples, so that one changed or exchanged number shows."""
    odd = torch.arange(1, 2 * PIECE, 2, device=bits.device)
    total = torch.zeros((), dtype=torch.int64, device=bits.device)
    for piece in bits.split(PIECE):  # so that memory does not grow with the tensor
        total = 31 * total + (piece * odd[: len(piece)]).sum()
    return int(total)


def _default_device(device: torch.device) -> None:
    torch.set_default_device(None if device.type == "cpu" else device)


def _matmul() -> str | None:
    with suppress(RuntimeError):  # where torch's older and newer settings of it are mixed
        return torch.get_float32_matmul_precision()
    return None


def _autocast() -> list[tuple]:
    kinds = ("cpu", "cuda")
    return [(kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in kinds]


def _set_autocast(states: list[tuple]) -> None:
    for kind, enabled, dtype in states:
        torch.set_autocast_enabled(kind, enabled)
        torch.set_autocast_dtype(kind, dtype)


def _cudnn() -> dict[str, bool]:
    names = ("enabled", "benchmark", "deterministic")
    return {name: getattr(torch.backends.cudnn, name) for name in names}


def _set_cudnn(states: dict[str, bool]) -> None:
    for name, value in states.items():
        setattr(torch.backends.cudnn, name, value)


def _set_onednn(enabled: bool) -> None:
    setattr(torch.backends.mkldnn, "enabled", enabled)  # noqa: B010


def _attention() -> dict[str, bool]:
    return {name: getattr(torch.backends.cuda, f"{name}_enabled")() for name in ATTENTION}


def _set_attention(states: dict[str, bool]) -> None:
    for name, enabled in states.items():
        getattr(torch.backends.cuda, f"enable_{name}")(enabled)


def _functions() -> list[Any]:
    return [vars(module).get(name) for module, name in FUNCTIONS]


def _set_functions(before: list[Any]) -> None:
    for (module, name), function in zip(FUNCTIONS, before, strict=True):
        setattr(module, name, function)


def _tensor_methods() -> list[Any]:
    own = vars(Tensor)
    return [own.get(name) for name in TENSOR_METHODS]


def _set_tensor_methods(before: list[Any]) -> None:
    for name, value, now in zip(TENSOR_METHODS, before, _tensor_methods(), strict=True):
        if now is not value:
            _put(Tensor, name, value)


def _modes() -> list[int]:
    return [torch._C._len_torch_function_stack(), len(_get_current_dispatch_mode_stack())]


# {what they are: (read them, set them)}
SETTINGS: dict[str, tuple[Callable[[], Any], Callable[[Any], object]]] = {
    "the default dtype of torch": (torch.get_default_dtype, torch.set_default_dtype),
    "the default device of torch": (torch.get_default_device, _default_device),
    "the deterministic mode of torch": (torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode),
    "the number of threads of torch": (torch.get_num_threads, torch.set_num_threads),
    "the precision of torch's matrix products": (_matmul, torch.set_float32_matmul_precision),
    "the autocast of torch": (_autocast, _set_autocast),
    "the settings of cuDNN": (_cudnn, _set_cudnn),
    "the setting enabled of torch.backends.mkldnn": (lambda: torch.backends.mkldnn.enabled, _set_onednn),
    "the kernels of torch's attention": (_attention, _set_attention),
    "the functions of torch": (_functions, _set_functions),
    "the methods of tensors": (_tensor_methods, _set_tensor_methods),
    "the functions of torch.nn.functional": (lambda: dict(vars(functional)), vars(functional).update),
    "the modes of torch": (_modes, lambda before: None),  # of others' making, which nobody else can leave
    "the error handling of numpy": (np.geterr, lambda before: np.seterr(**before)),
}
