"""Hash Python values that a network uses. Values with equal content have the same hash in every process.

    ContentHasher().hash({"scale": 2.0, "text": torch.ones(3, 8)})      # 32 hexadecimal digits

Numbers, text and containers are hashed by value and order, and tensors and arrays by their bytes. Your own functions
and classes are hashed by their code and the globals that the code refers to, and objects by their class and attributes.
Functions and classes of libraries and of this package are hashed by name. Devices are ignored.

Values that a forward pass changes are left out individually. A `Place` refers to such a value (an attribute, a global,
or an item of a list or dict) by the pair (id of the object that contains the value, name). `changed` returns the places
whose values differ between two hashes, and the next hash leaves out only the values at these places.
"""

import copyreg
import enum
import functools
import inspect
import io
import sys
import threading
import types
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from hashlib import blake2b
from typing import Any

import numpy as np
import torch
from torch import nn

from saliency_bench.utils.devices import is_out_of_memory
from saliency_bench.utils.source_code import COMPILED_FROM, cell_contents, global_names, is_library, nested

DEEPEST = 150  # maximum number of nested levels
FRAMES = 12  # maximum number of Python calls on the stack per level
MOST = 200_000  # maximum number of values in one hash
LARGE = 100  # items; places inside larger containers are not recorded
PLAIN = frozenset({type(None), bool, int, float, complex, str, bytes})
# Python's own attributes of classes and functions, and attributes that may differ although the code is the same.
UNIMPORTANT = {"__dict__", "__weakref__", "__doc__", "__module__", "__qualname__", "__firstlineno__", "__annotations__",
               "__static_attributes__", "__abstractmethods__", "_abc_impl", "__wrapped__", "__slotnames__"}  # fmt: skip
LOOKUPS = {"getattr", "globals", "vars", "attrgetter", "methodcaller", "__dict__"}  # they look up names in strings
ITEM = "item "  # prefix of the names of places in lists and dicts
Place = tuple[int, str]  # id of the object that contains a value, and the name of the value in the object
DESCRIPTORS = (types.MemberDescriptorType, types.GetSetDescriptorType)  # types of the attributes of `__slots__`
MAKING = {"__init__", "__new__", "__init_subclass__", "__repr__", "__str__", "__reduce__", "__reduce_ex__",
          "__getstate__", "__setstate__", "__del__"}  # fmt: skip
# Objects that do not affect results.
OPAQUE = (type(threading.Lock()), type(threading.RLock()), torch.device, torch._C.Stream)


class UnhashableError(Exception):
    """A value has no content that could be hashed identically in every process. The message names the value."""


class ContentHasher:
    """Hash values by content.

    Args:
        special: Function that is called with this hasher and each object before the object is hashed. It returns the
            hash of the object, the (holder, name, value) triples to hash instead of the object, or None.
        left_out: The values that are not hashed, as pairs (id of the holder, attribute name).

    Attributes:
        names: {id of an object: name to hash instead of the object}.
        places: {(id of the holder, attribute name): (hash of the value, id of the value)}.
    """

    def __init__(
        self,
        special: "Callable[[ContentHasher, Any], bytes | Iterable[tuple[Any, str, Any]] | None]" = lambda *given: None,
        left_out: Collection[Place] = (),
    ):
        self._special, self._left_out = special, left_out
        self.names: dict[int, str] = {}
        self.places: dict[Place, tuple[bytes, int]] = {}
        self._hashes: dict[int, bytes] = {}
        self._failed: dict[int, str] = {}
        self._alive: dict[int, object] = {}  # keeps hashed objects alive, so that their ids are not reused
        self._open: list[int] = []
        self._below: dict[int, set[int | Place]] = {}  # {id of a value: ids and places of the values inside it}
        self._cycles = self._first = 0
        self._modes: frozenset[str] = frozenset()

    def hash(self, value: object) -> str:
        """Return the hash of a value, 32 hexadecimal digits.

        Raises:
            UnhashableError: The value contains an object without stable content, such as an open file.
        """
        return self.hash_in(self, "", value)

    def hash_in(self, holder: object, name: str, value: object) -> str:
        """Return the hash of the value that `holder` stores under `name`, and record the hash in `places`."""
        limit = sys.getrecursionlimit()
        sys.setrecursionlimit(limit + FRAMES * DEEPEST)
        self._open.clear()
        self._first = len(self._hashes)
        try:
            return b"".join(self.hash_place(holder, name, value)[1:]).hex()
        finally:
            sys.setrecursionlimit(limit)

    def hash_place(self, holder: object, name: str, value: object) -> tuple[bytes, ...]:
        """Return the name and hash of the value that `holder` stores under `name`, or () if the value is left out.

        A list or dict that is left out is hashed as if it were empty.
        """
        place = id(holder), name
        if place in self._left_out:
            if type(value) not in (list, dict):
                return ()
            value = type(value)()
        hashed = b"no content"
        try:
            hashed = self._hash(value)
        finally:
            if "whole" not in self._modes:
                self.places[place] = hashed, 0 if type(value) in PLAIN else id(value)
                self._alive[id(holder)] = holder
                if self._open:
                    self._below.setdefault(self._open[-1], set()).add(place)
        return name.encode(errors="surrogatepass"), hashed

    @contextmanager
    def inside(self, *modes: str) -> Iterator[None]:
        """Switch on hashing modes inside the context.

        Args:
            *modes: "whole": nothing is recorded in `places`; "unordered": the order of dicts is ignored; "many":
                containers of plain values are hashed in one step.
        """
        before = self._modes
        self._modes = before.union(modes)
        try:
            yield
        finally:
            self._modes = before

    def unordered(self, value: object) -> bytes:
        """Return the hash of a value, ignoring the order of dicts."""
        with self.inside("whole", "unordered"):
            return self._hash(value)

    def holder_of(self, place: Place) -> object:
        """Return the object (holder) that a place refers to."""
        return self._alive[place[0]]

    def _hash(self, value: object) -> bytes:
        """Return the hash of a value, computed once per object."""
        if type(value) in PLAIN or self._is_large_and_plain(value):
            return _digest(type(value).__name__, repr(value))
        key = id(value)
        if key in self.names:
            return _digest("named", self.names[key])
        if self._open and "whole" not in self._modes:
            self._below.setdefault(self._open[-1], set()).add(key)
        if key in self._open:  # a value that contains itself
            self._cycles += 1
            return _digest("cycle", str(len(self._open) - self._open.index(key)))
        if key in self._failed:
            raise UnhashableError(self._failed[key])
        if key not in self._hashes:
            self._hashes[key] = self._new_hash(value)
        return self._hashes[key]

    def _new_hash(self, value: object) -> bytes:
        self._alive[id(value)] = value
        self._open.append(id(value))
        try:
            if len(self._open) > DEEPEST or len(self._hashes) - self._first >= MOST:
                raise UnhashableError(f"{_class_name(type(value))} is too deeply nested or too large")
            return _digest(*self._parts(value))
        except Exception as error:  # methods of the object may raise any exception
            if is_out_of_memory(error):
                raise
            message = str(error) if isinstance(error, UnhashableError) else f"{_class_name(type(value))} cannot be read"
            self._failed[id(value)] = message
            raise UnhashableError(message) from error
        finally:
            self._open.pop()

    def _is_large_and_plain(self, value: Any) -> bool:
        if type(value) not in (list, tuple, dict) or not ("many" in self._modes or len(value) > LARGE):
            return False
        if "unordered" in self._modes:
            return False
        return all(type(item) in PLAIN for item in value) and (
            type(value) is not dict or all(type(item) in PLAIN for item in value.values())
        )

    def _parts(self, value: Any) -> Iterator[str | bytes]:
        kind = type(value)
        replaced = self._special(self, value)
        if isinstance(replaced, bytes):
            yield from ("special", replaced)
        elif replaced is not None:
            for place in replaced:
                yield from self.hash_place(*place)
        elif isinstance(value, torch.Tensor):
            yield from _tensor(value)
        elif isinstance(value, np.ndarray | np.generic) and not value.dtype.hasobject:
            yield from ("array", str(value.dtype), str(value.shape), np.ascontiguousarray(value).tobytes())
        elif isinstance(value, memoryview):
            yield from ("bytes", value.tobytes())
        elif isinstance(value, OPAQUE) or _is_log(value):
            yield from ("opaque", kind.__name__)
        elif isinstance(value, type):
            yield from self._class(value)
        elif isinstance(value, enum.Enum):
            yield from ("enum", self._hash(kind), value.name, self._hash(value.value))
        elif isinstance(value, weakref.ref):
            yield from ("reference", self._hash(value()))
        elif isinstance(value, types.ModuleType):
            yield from self._module(value)
        elif isinstance(value, types.CodeType):
            yield from self._code(value)
        elif callable(value) and (parts := self._callable(value)) is not None:
            yield from parts
        else:
            yield from self._object(value)

    def _callable(self, value: Any) -> Iterator[str | bytes] | None:
        """Return the values to hash for a function, or None for any other callable object."""
        if isinstance(value, types.FunctionType):
            compiled = vars(value).get(COMPILED_FROM)
            return self._function(value) if compiled is None else iter(("compiled", self._hash(compiled)))
        if isinstance(value, types.MethodType):
            return iter(("method", self._hash(value.__self__), self._hash(value.__func__)))
        if isinstance(value, functools.partial):
            return iter((b"partial", *map(self._hash, (value.func, value.args, value.keywords))))
        if isinstance(value, torch.jit.ScriptFunction):
            return iter(("script", str(value.code)))
        if isinstance(value, functools._lru_cache_wrapper):
            return iter(("cached", self._hash(value.__wrapped__)))
        if isinstance(value, torch.library.CustomOpDef):
            return iter(("operation", self._hash(value._init_fn)))
        if isinstance(value, types.BuiltinFunctionType | types.MethodWrapperType | types.WrapperDescriptorType):
            owner = getattr(value, "__self__", None)
            bound = b"" if owner is None or isinstance(owner, types.ModuleType) else self._hash(owner)
            return iter(("builtin", str(getattr(value, "__module__", "")), value.__qualname__, bound))
        return None

    def _function(self, function: types.FunctionType) -> Iterator[str | bytes]:
        """Yield a library function's name, or a user function's code and the values that this code refers to."""
        module = str(function.__globals__.get("__name__", ""))  # functools.wraps replaces `__module__`
        if is_library(module):
            yield from ("function", module.partition(".")[0], function.__qualname__)
        else:
            yield from ("own function", self._hash(function.__code__))
        for cell in function.__closure__ or ():  # including functions wrapped by a decorator
            yield from self.hash_place(cell, "", cell_contents(cell))
        if not function.__closure__:
            yield self._hash([])
        if is_library(module):
            return
        for values in (function.__defaults__, function.__kwdefaults__):
            yield self._hash(values)
        for scope, name, value in _globals(function.__code__, function.__globals__):
            yield from self.hash_place(scope, name, value)
        for name, value in sorted(vars(function).items()):
            if name not in UNIMPORTANT:
                yield from self.hash_place(function, name, value)

    def _module(self, module: types.ModuleType) -> Iterator[str | bytes]:
        """Yield a module's name and, if it is a user's own module (such as a config), its data."""
        yield from ("module", module.__name__)
        for name, value in sorted(vars(module).items()) if not is_library(module.__name__) else ():
            is_data = isinstance(
                value, bool | int | float | str | list | tuple | dict | set | np.ndarray | torch.Tensor
            )
            if is_data and not name.startswith("__"):
                yield from self.hash_place(vars(module), name, value)

    def _code(self, code: types.CodeType) -> Iterator[str | bytes]:
        """Yield the instructions of code, without file names and line numbers."""
        yield from ("code", code.co_code, str((code.co_argcount, code.co_kwonlyargcount, code.co_flags)))
        yield code.co_exceptiontable
        for names in (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars):
            yield " ".join(names)
        for constant in code.co_consts:
            yield self._hash(constant)

    def _class(self, kind: type) -> Iterator[str | bytes]:
        """Yield the name of a library class, or the name, methods and class attributes of a user's own class.

        For a torch module, only methods that `forward` can call are included, not methods that build or train the
        network. The user's functions that were patched into a library class are included too.
        """
        yield from ("class", _class_name(kind))
        metaclass = type(kind)
        if isinstance(metaclass.__module__, str) and not is_library(metaclass.__module__):  # else it is compiled
            yield self._hash(metaclass)
        reached = _reached(kind) if issubclass(kind, nn.Module) else None
        for parent in kind.__mro__:
            is_own = not is_library(parent.__module__)
            yield _class_name(parent)
            for name, value in sorted(vars(parent).items()):
                is_unused = reached is not None and _functions(value) and name not in reached
                if is_unused or name in UNIMPORTANT or name.startswith("__pydantic_"):
                    continue
                for part in _functions(value) or [value]:
                    if (is_own or _is_own_function(part)) and not isinstance(part, DESCRIPTORS):
                        yield from self.hash_place(parent, name, part)

    def _object(self, value: Any) -> Iterator[str | bytes]:
        kind = type(value)
        yield from ("object", self._hash(kind))
        if isinstance(value, Mapping) and hasattr(value, "items"):
            yield from self._mapping(value)
        elif isinstance(value, set | frozenset):
            yield from self._set(value)
        elif isinstance(value, list | tuple):
            yield from self._sequence(value)
        elif not _has_plain_state(kind):
            yield from self._reduced(value)
            return
        else:
            _refuse_hidden_state(value)
        for name, attribute in sorted(_state(value)):
            yield from self.hash_place(value, name, attribute)

    def _mapping(self, value: Mapping) -> Iterator[str | bytes]:
        try:
            items = list(value.items())
        except Exception:  # for example, a config that lacks required entries
            yield from self._reduced(value)
            return
        pairs = []
        with self.inside("whole", "many") if len(items) > LARGE else nullcontext():
            for key, item in items:
                hashed = self._hash(key)
                pairs += [(hashed, part) for part in self.hash_place(value, f"{ITEM}{hashed.hex()}", item)[1:]]
        for pair in sorted(pairs) if "unordered" in self._modes else pairs:
            yield from pair

    def _sequence(self, value: list | tuple) -> Iterator[bytes]:
        with self.inside("whole", "many") if len(value) > LARGE else nullcontext():
            for index, item in enumerate(value):
                is_place = isinstance(value, list)
                yield from self.hash_place(value, f"{ITEM}{index}", item)[1:] if is_place else [self._hash(item)]

    def _set(self, value: set | frozenset) -> list[bytes]:
        before = self._cycles
        with self.inside("whole"):
            hashes = sorted(map(self._hash, value))
        if self._cycles > before and len(hashes) > 1:  # the hashes depend on the order of iteration
            raise UnhashableError("a set of objects that refer to each other cannot be hashed")
        return hashes

    def _reduced(self, value: Any) -> Iterator[str | bytes]:
        """Yield the values that pickle would store for an object."""
        registered = copyreg.dispatch_table.get(type(value))
        try:
            reduced: Any = registered(value) if registered else value.__reduce_ex__(4)
        except Exception as error:  # a class may raise any exception
            raise UnhashableError(f"{_class_name(type(value))} has no readable content") from error
        if isinstance(reduced, str):
            yield reduced
            return
        has_attributes = len(reduced) > 2 and reduced[2] is getattr(value, "__dict__", self)
        with self.inside("whole"):  # these values are created for each pickle
            for part in reduced[: 2 if has_attributes else 3]:
                yield self._hash(part)
            for items in reduced[3:5]:
                yield self._hash(None if items is None else list(items))
        for name, attribute in sorted(vars(value).items()) if has_attributes else ():
            yield from self.hash_place(value, name, attribute)


def changed(before: ContentHasher, after: ContentHasher) -> set[Place]:
    """Return the innermost places at which a value that was hashed twice has changed.

    If a place still refers to the same object and only a place inside this object differs, only the inner place is
    returned. If items were added to or removed from a list or dict, the whole list or dict counts as changed, because
    the next pass may add more.
    """
    nothing = (b"", 0)
    both = {
        place: (before.places.get(place, nothing), after.places.get(place, nothing))
        for place in before.places.keys() | after.places.keys()
    }
    differing = {
        place
        for place, (old, new) in both.items()
        if old[0] != new[0] and not (place[1].startswith(ITEM) and nothing in (old, new))
    }
    return {
        place
        for place in differing
        if both[place][0][1] != both[place][1][1] or not _reaches(after, both[place][1][1], differing)
    }


def _reaches(hasher: ContentHasher, value: int, places: Collection[Place]) -> bool:
    """Return whether one of these places is inside the value with this id, at any depth."""
    seen, waiting = {value}, [value]
    while waiting:
        for part in hasher._below.get(waiting.pop(), ()):
            if isinstance(part, tuple) and part in places:
                return True
            inner = hasher.places[part][1] if isinstance(part, tuple) else part
            if inner not in seen:
                seen.add(inner)
                waiting.append(inner)
    return False


def _digest(*parts: str | bytes) -> bytes:
    digest = blake2b(digest_size=16)
    for part in parts:
        content = part.encode(errors="surrogatepass") if isinstance(part, str) else part
        digest.update(len(content).to_bytes(8, "little"))
        digest.update(content)
    return digest.digest()


def _tensor(value: torch.Tensor) -> Iterator[str | bytes]:
    yield from ("tensor", str(value.dtype), str(tuple(value.shape)))
    if value.device.type == "meta":
        return
    try:
        plain = value.detach().cpu().resolve_conj().resolve_neg().to_dense() if value.layout != torch.strided else (
            value.detach().cpu().resolve_conj().resolve_neg())  # fmt: skip
        yield plain.contiguous().view(-1).view(torch.uint8).numpy().tobytes()
    except (RuntimeError, TypeError) as error:
        if is_out_of_memory(error):
            raise
        raise UnhashableError(f"a tensor of dtype {value.dtype} and layout {value.layout} cannot be hashed") from error


def _is_log(value: object) -> bool:
    """Return whether a value is a write-only file."""
    return isinstance(value, io.IOBase) and not value.closed and value.writable() and not value.readable()


def _globals(code: types.CodeType, scope: dict[str, Any]) -> Iterator[tuple[dict[str, Any], str, Any]]:
    """Yield (scope, name, value) of the globals that code names, including attributes of the user's own modules."""
    names = sorted(_words(code))
    loaded = global_names(code) | _texts(code)
    modules: list[types.ModuleType] = []
    for name in names:
        if name in scope and name not in loaded:  # an attribute of this name, as in self.net
            continue
        if name in scope and not isinstance(scope[name], types.ModuleType):
            yield scope, name, scope[name]
        else:
            modules += [scope[name]] if name in scope else _imported(name, scope)
    seen: set[int] = set()
    while modules:
        module = modules.pop(0)
        if id(module) in seen:
            continue
        seen.add(id(module))
        is_own, content = not is_library(module.__name__), vars(module)
        for name in names:
            if isinstance(content.get(name), types.ModuleType):
                modules.append(content[name])
            elif name in content and (is_own or _is_own_function(content[name])):  # patched into a library
                yield content, name, content[name]


def _words(code: types.CodeType) -> set[str]:
    """Return the names that code uses, and the strings in it that may be looked up as names."""
    return {name for part in nested(code) for name in part.co_names} | _texts(code)


def _texts(code: types.CodeType) -> set[str]:
    """Return the strings in code that may be looked up as names."""
    codes = list(nested(code))
    if not any(LOOKUPS.intersection(part.co_names) for part in codes):
        return set()
    return {text for part in codes for text in part.co_consts if isinstance(text, str) and text.isidentifier()}


def _imported(name: str, scope: Mapping[str, Any]) -> list[types.ModuleType]:
    """Return the loaded modules that an import of this name inside a function may mean, absolute or relative."""
    package = str(scope.get("__package__") or str(scope.get("__name__", "")).rpartition(".")[0]).split(".")
    around = [".".join([*package[:count], name]) for count in range(1, len(package) + 1) if package != [""]]
    return [sys.modules[path] for path in (name, *around) if isinstance(sys.modules.get(path), types.ModuleType)]


def _functions(value: Any) -> list[Any]:
    """Return the functions behind a method, property or cached property, or [] for any other class attribute."""
    if isinstance(value, property):
        return [part for part in (value.fget, value.fset) if part is not None]
    function = getattr(value, "__func__", getattr(value, "func", value))  # of class methods, of cached properties
    return [function] if isinstance(inspect.unwrap(function), types.FunctionType) else []


def _reached(kind: type) -> set[str]:
    """Return the names of the methods that a module's `forward` may call, directly or indirectly."""
    return _reached_and_words(kind)[0]


def names_in(kind: type) -> set[str]:
    """Return the names and strings in the parts of the user's own code that a module's `forward` may run."""
    return _reached_and_words(kind)[1]


def _reached_and_words(kind: type) -> tuple[set[str], set[str]]:
    """Return (method names as in `_reached`, names and strings as in `names_in`)."""
    reached: set[str] = set()
    every: set[str] = set()
    waiting = {name for name in dir(kind) if name.startswith("__") and name not in MAKING} | {"forward"}
    while waiting:
        name = waiting.pop()
        reached.add(name)
        methods = [vars(parent)[name] for parent in kind.__mro__ if name in vars(parent)]
        for function in (inspect.unwrap(part) for method in methods for part in _functions(method)):
            if _is_own_function(function):
                words = {
                    word
                    for code in nested(function.__code__)
                    for word in (*code.co_names, *code.co_consts)
                    if isinstance(word, str)
                }
                every |= words
                waiting |= {word for word in words if hasattr(kind, word)} | _composed(words, kind)
                waiting -= reached
    return reached, every


def _composed(words: set[str], kind: type) -> set[str]:
    """Return the method names that code may compose and look up, as in getattr(self, f"forward_{mode}")."""
    ends = [word for word in words if len(word) > 2 and "_" in (word[0], word[-1]) and word.strip("_")]
    if not words & LOOKUPS or not ends:
        return set()
    return {name for name in dir(kind) if any(name.startswith(end) or name.endswith(end) for end in ends)}


def _is_own_function(value: object) -> bool:
    return isinstance(value, types.FunctionType) and not is_library(str(value.__globals__.get("__name__", "")))


def _class_name(kind: type) -> str:
    """Return the name of a class, preceded by its package.

    The package is omitted for a user's own class, because its module may be imported under several names.
    """
    module = str(kind.__module__)  # not a string for some compiled classes
    package = module.partition(".")[0] if is_library(module) else ""
    return f"{package} {kind.__qualname__}"


def _has_plain_state(kind: type) -> bool:
    """Return whether objects of this class have no state other than their attributes."""
    if kind in copyreg.dispatch_table:
        return False
    if any(
        getattr(kind, name) is not getattr(object, name) for name in ("__reduce__", "__reduce_ex__", "__getstate__")
    ):
        return False
    return any("__dict__" in vars(parent) or "__slots__" in vars(parent) for parent in kind.__mro__)


def _refuse_hidden_state(value: object) -> None:
    """Raise UnhashableError if an object, such as one implemented in C, has state outside its attributes."""
    try:
        object.__reduce_ex__(value, 4)
    except TypeError as error:
        raise UnhashableError(f"{_class_name(type(value))} has no readable content") from error


def _state(value: Any) -> Iterator[tuple[str, Any]]:
    yield from getattr(value, "__dict__", {}).items()
    for parent in type(value).__mro__:
        slots = vars(parent).get("__slots__", ())
        for name in [slots] if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__") and hasattr(value, name):
                yield name, getattr(value, name)
