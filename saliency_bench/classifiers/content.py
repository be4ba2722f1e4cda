"""Hash a Python value by its content, with the same result in every process, for values that a network reads.

    ContentHasher().hash({"scale": 2.0, "text": torch.ones(3, 8)})      # 32 hexadecimal digits

Numbers, text and containers are hashed by value, tensors and arrays by their bytes, your own functions and classes by
their code and the globals that the code names, and objects by their class and attributes. Functions and classes of
libraries and of this package are hashed by name. Devices are ignored.
"""

import copyreg
import enum
import functools
import inspect
import sys
import threading
import types
from collections.abc import Callable, Iterator, Mapping
from hashlib import blake2b
from typing import Any

import numpy as np
import torch
from torch import nn

from saliency_bench.utils.source_code import is_library, nested

DEEPEST = 60  # levels of nesting
MOST = 200_000  # values in one hash
# Python's own attributes of classes and functions, and attributes that differ between equal ones.
UNIMPORTANT = {"__dict__", "__weakref__", "__doc__", "__module__", "__qualname__", "__firstlineno__", "__annotations__",
               "__static_attributes__", "__abstractmethods__", "_abc_impl", "__wrapped__", "__slotnames__"}  # fmt: skip
DESCRIPTORS = (types.MemberDescriptorType, types.GetSetDescriptorType)  # of `__slots__`
MAKING = {"__init__", "__new__", "__init_subclass__", "__repr__", "__str__", "__reduce__", "__reduce_ex__",
          "__getstate__", "__setstate__", "__del__"}  # fmt: skip
# Objects that do not affect results.
OPAQUE = (type(threading.Lock()), type(threading.RLock()), torch.device, torch._C.Stream)


class UnhashableError(Exception):
    """A value has no content that is the same in every process; the message names the value."""


class ContentHasher:
    """Hash values by content.

    Args:
        names: {id of an object: name to hash in its place}.
        special: Called with each object first; returns a value to hash in its place, or None.
    """

    def __init__(self, names: Mapping[int, str] | None = None, special: Callable[[Any], Any] = lambda value: None):
        self._names, self._special = dict(names or {}), special
        self._hashes: dict[int, bytes] = {}
        self._alive: list[object] = []  # keeps hashed objects alive, so that their ids are not reused
        self._open: list[int] = []

    def hash(self, value: object) -> str:
        """Return the hash of a value, 32 hexadecimal digits.

        Raises:
            UnhashableError: The value holds an object without stable content, such as an open file.
        """
        self._open.clear()
        return self._hash(value).hex()

    def _hash(self, value: object) -> bytes:
        """Return the hash of a value, computed once per object."""
        if value is None or type(value) in (bool, int, float, complex, str, bytes):
            return _digest(type(value).__name__, repr(value))
        key = id(value)
        if key in self._names:
            return _digest("named", self._names[key])
        if key in self._open:  # a value that contains itself
            return _digest("cycle", str(len(self._open) - self._open.index(key)))
        if key not in self._hashes:
            if len(self._open) >= DEEPEST or len(self._hashes) >= MOST:
                raise UnhashableError(f"{_class_name(type(value))} is nested too deeply or too large")
            self._open.append(key)
            try:
                self._hashes[key] = _digest(*self._parts(value))
            finally:
                self._open.pop()
            self._alive.append(value)
        return self._hashes[key]

    def _parts(self, value: Any) -> Iterator[str | bytes]:
        """Yield the hashes of the parts of a value."""
        kind = type(value)
        replaced = self._special(value)
        if replaced is not None:
            yield from ("special", self._hash(replaced))
        elif isinstance(value, torch.Tensor):
            yield from _tensor(value)
        elif isinstance(value, np.ndarray | np.generic) and not value.dtype.hasobject:
            yield from ("array", str(value.dtype), str(value.shape), np.ascontiguousarray(value).tobytes())
        elif isinstance(value, memoryview):
            yield from ("bytes", value.tobytes())
        elif isinstance(value, OPAQUE):
            yield from ("opaque", kind.__name__)
        elif isinstance(value, type):
            yield from self._class(value)
        elif isinstance(value, enum.Enum):
            yield from ("enum", self._hash(kind), value.name, self._hash(value.value))
        elif isinstance(value, types.ModuleType):
            yield from ("module", value.__name__)
        elif isinstance(value, types.CodeType):
            yield from self._code(value)
        elif callable(value) and (parts := self._callable(value)) is not None:
            yield from parts
        else:
            yield from self._object(value)

    def _callable(self, value: Any) -> Iterator[str | bytes] | None:
        """Return the parts of a function; None for any other callable object."""
        if isinstance(value, types.FunctionType):
            return self._function(value)
        if isinstance(value, types.MethodType):
            return iter(("method", self._hash(value.__self__), self._hash(value.__func__)))
        if isinstance(value, functools.partial):
            return iter((b"partial", *map(self._hash, (value.func, value.args, value.keywords))))
        if isinstance(value, torch.jit.ScriptFunction):
            return iter(("script", str(value.code)))
        if isinstance(value, functools._lru_cache_wrapper):
            return iter(("cached", self._hash(value.__wrapped__)))
        if isinstance(value, types.BuiltinFunctionType | types.MethodWrapperType | types.WrapperDescriptorType):
            owner = getattr(value, "__self__", None)
            bound = b"" if owner is None or isinstance(owner, types.ModuleType) else self._hash(owner)
            return iter(("builtin", str(getattr(value, "__module__", "")), value.__qualname__, bound))
        return None

    def _function(self, function: types.FunctionType) -> Iterator[str | bytes]:
        """Yield the name of a library function, or the code of your own function and the values that it refers to."""
        module = str(function.__globals__.get("__name__", ""))  # functools.wraps replaces `__module__`
        cells = self._hash([_contents(cell) for cell in function.__closure__ or ()])  # and wrapped functions
        if is_library(module):
            yield from ("function", module.partition(".")[0], function.__qualname__, cells)
            return
        yield from ("own function", self._hash(function.__code__), cells)
        for values in (function.__defaults__, function.__kwdefaults__):
            yield self._hash(values)
        for name, value in _globals(function.__code__, function.__globals__):
            yield from (name, self._hash(value))

    def _code(self, code: types.CodeType) -> Iterator[str | bytes]:
        """Yield the instructions of code, without file names and line numbers."""
        yield from ("code", code.co_code, str((code.co_argcount, code.co_kwonlyargcount, code.co_flags)))
        for names in (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars):
            yield " ".join(names)
        for constant in code.co_consts:
            yield self._hash(constant)

    def _class(self, kind: type) -> Iterator[str | bytes]:
        """Yield the name of a library class, or the name, methods and class attributes of your own class.

        For a module, only methods that `forward` can reach count, not those that build or train the network. Your own
        methods that were patched into a library class count too.
        """
        yield from ("class", _class_name(kind))
        reached = _reached(kind) if issubclass(kind, nn.Module) else None
        for parent in kind.__mro__:
            is_own = not is_library(parent.__module__)
            yield _class_name(parent)
            for name, value in sorted(vars(parent).items()):
                if name in UNIMPORTANT or (reached is not None and _functions(value) and name not in reached):
                    continue
                for part in _functions(value) or [value]:
                    if (is_own or _is_own_function(part)) and not isinstance(part, DESCRIPTORS):
                        yield from (name, self._hash(part))

    def _object(self, value: Any) -> Iterator[str | bytes]:
        """Yield the class, attributes and items of an object."""
        kind = type(value)
        yield from ("object", self._hash(kind))
        if isinstance(value, Mapping) and hasattr(value, "items"):
            pairs = sorted((self._hash(key), self._hash(item)) for key, item in value.items())
            yield from (part for pair in pairs for part in pair)
        elif isinstance(value, set | frozenset):
            yield from sorted(map(self._hash, value))
        elif isinstance(value, list | tuple):
            yield from map(self._hash, value)
        elif not _has_plain_state(kind):
            yield from self._reduced(value)
            return
        else:
            _refuse_hidden_state(value)
        for name, attribute in sorted(_state(value)):
            yield from (name, self._hash(attribute))

    def _reduced(self, value: Any) -> Iterator[str | bytes]:
        """Yield what pickle would store for an object."""
        registered = copyreg.dispatch_table.get(type(value))
        try:
            reduced = registered(value) if registered else value.__reduce_ex__(4)
        except Exception as error:  # of any class
            raise UnhashableError(f"{_class_name(type(value))} cannot be hashed") from error
        if isinstance(reduced, str):
            yield reduced
            return
        for part in reduced[:3]:
            yield self._hash(part)
        for items in reduced[3:5]:
            yield self._hash(None if items is None else list(items))


def _digest(*parts: str | bytes) -> bytes:
    """Return a hash of parts, each preceded by its length."""
    digest = blake2b(digest_size=16)
    for part in parts:
        content = part.encode(errors="surrogatepass") if isinstance(part, str) else part
        digest.update(len(content).to_bytes(8, "little"))
        digest.update(content)
    return digest.digest()


def _tensor(value: torch.Tensor) -> Iterator[str | bytes]:
    """Yield the dtype, shape and bytes of a tensor."""
    yield from ("tensor", str(value.dtype), str(tuple(value.shape)))
    if value.device.type == "meta":
        return
    try:
        plain = value.detach().cpu().resolve_conj().resolve_neg().to_dense() if value.layout != torch.strided else (
            value.detach().cpu().resolve_conj().resolve_neg())  # fmt: skip
        yield plain.contiguous().view(-1).view(torch.uint8).numpy().tobytes()
    except (RuntimeError, NotImplementedError, TypeError) as error:
        raise UnhashableError(f"a tensor of dtype {value.dtype} and layout {value.layout} cannot be hashed") from error


def _contents(cell: types.CellType) -> object:
    """Return the content of a closure cell; None if it is empty."""
    try:
        return cell.cell_contents
    except ValueError:
        return None


def _globals(code: types.CodeType, scope: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield (name, value) of the globals that code names, including attributes of your own modules."""
    names = sorted({name for part in nested(code) for name in part.co_names})
    for name in names:
        value = scope[name] if name in scope else sys.modules.get(name)  # a module imported inside the function
        if not isinstance(value, types.ModuleType):
            if name in scope:
                yield name, value
        elif not is_library(value.__name__):
            yield from ((f"{name}.{key}", vars(value)[key]) for key in names if key in vars(value))


def _functions(value: Any) -> list[Any]:
    """Return the functions behind a method, property or cached property; [] for any other class attribute."""
    if isinstance(value, property):
        return [part for part in (value.fget, value.fset) if part is not None]
    function = getattr(value, "__func__", getattr(value, "func", value))  # of class methods, of cached properties
    return [function] if isinstance(inspect.unwrap(function), types.FunctionType) else []


def _reached(kind: type) -> set[str]:
    """Return the names of the methods that `forward` of a module may call, directly or indirectly."""
    reached: set[str] = set()
    waiting = {name for name in dir(kind) if name.startswith("__") and name not in MAKING} | {"forward"}
    while waiting:
        name = waiting.pop()
        reached.add(name)
        methods = [vars(parent)[name] for parent in kind.__mro__ if name in vars(parent)]
        for function in (inspect.unwrap(part) for method in methods for part in _functions(method)):
            if _is_own_function(function):
                words = (word for code in nested(function.__code__) for word in (*code.co_names, *code.co_consts))
                waiting |= {word for word in words if isinstance(word, str) and hasattr(kind, word)} - reached
    return reached


def _is_own_function(value: object) -> bool:
    """Return whether a value is a function that does not come from a library."""
    return isinstance(value, types.FunctionType) and not is_library(str(value.__globals__.get("__name__", "")))


def _class_name(kind: type) -> str:
    """Return the name of a class with its package, since your own module may be imported under several names."""
    package = kind.__module__.partition(".")[0] if is_library(kind.__module__) else ""
    return f"{package} {kind.__qualname__}"


def _has_plain_state(kind: type) -> bool:
    """Return whether the attributes of an object of this class are its whole state."""
    if kind in copyreg.dispatch_table:
        return False
    if any(
        getattr(kind, name) is not getattr(object, name) for name in ("__reduce__", "__reduce_ex__", "__getstate__")
    ):
        return False
    return any("__dict__" in vars(parent) or "__slots__" in vars(parent) for parent in kind.__mro__)


def _refuse_hidden_state(value: object) -> None:
    """Raise UnhashableError for an object with state outside its attributes, as in a class written in C."""
    try:
        object.__reduce_ex__(value, 4)
    except TypeError as error:
        raise UnhashableError(f"{_class_name(type(value))} cannot be hashed") from error


def _state(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield (name, value) of the attributes of an object."""
    yield from getattr(value, "__dict__", {}).items()
    for parent in type(value).__mro__:
        slots = vars(parent).get("__slots__", ())
        for name in [slots] if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__") and hasattr(value, name):
                yield name, getattr(value, name)
