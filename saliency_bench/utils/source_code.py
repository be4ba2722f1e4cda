"""A hash of what a Python function computes with: its code, and whatever that reaches outside of libraries.

    code_hash(function)        # CodeHash(version="5f0c...", unhashable="")

From the function on are followed: code, defaults, closures and attributes of functions; the globals that they name, and
what they name of your own modules, also those imported inside; classes with their methods, attributes and parents;
objects with their class and all they hold; arrays and tensors by their contents. Code is hashed as bytecode, which is
what runs even if the file was edited since; another minor version of Python has other bytecode, and computes anew. What
belongs to Python, an installed library or this package counts by its name, and `VERSION` where its module has one.

What nobody can take apart (locks, open files, generators) makes the hash another one each time, so that nothing that
was computed with other code is ever taken for its result. Not seen is what a function looks up only as it runs:
getattr(module, name), importlib, files, environment variables, the network.
"""

import dis
import importlib
import importlib.util
import inspect
import logging
import os
import secrets
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from hashlib import blake2b
from pathlib import Path
from types import (
    BuiltinFunctionType,
    CodeType,
    FunctionType,
    GetSetDescriptorType,
    MappingProxyType,
    MemberDescriptorType,
    MethodDescriptorType,
    MethodType,
    ModuleType,
    WrapperDescriptorType,
)
from typing import Any

import numpy as np
import torch

from saliency_bench.errors import described, one_line

PLAIN = (bool, int, float, complex, str, bytes, type(None), type(Ellipsis), type(NotImplemented))
BY_NAME = (BuiltinFunctionType, MethodDescriptorType, WrapperDescriptorType, GetSetDescriptorType, MemberDescriptorType)
CODE = ("co_code", "co_exceptiontable", "co_flags", "co_argcount", "co_posonlyargcount", "co_kwonlyargcount",
        "co_names", "co_varnames", "co_freevars", "co_cellvars", "co_consts")  # fmt: skip
# Of classes: what says nothing about what they compute.
SKIPPED = {"__dict__", "__weakref__", "__doc__", "__module__", "__qualname__", "__annotations__", "__abstractmethods__",
           "_abc_impl", "__firstlineno__", "__static_attributes__"}  # fmt: skip
LIBRARIES = {sysconfig.get_path(kind) for kind in ("stdlib", "platstdlib", "purelib", "platlib")}
OURS = "saliency_bench"


@dataclass(frozen=True)
class CodeHash:
    """`unhashable`: what the function depends on that cannot be hashed, in a few words; "" where all is."""

    version: str
    unhashable: str = ""


class UnhashableError(Exception):
    """The text says what cannot be hashed."""


def code_hash(function: Callable) -> CodeHash:
    while True:
        modules = len(sys.modules)
        found = _code_hash(function)
        if len(sys.modules) == modules:  # else a package has more attributes now than some code on the way has seen
            return found


def _code_hash(function: Callable) -> CodeHash:
    walk = _Walk()
    try:
        walk.add(function)
    except UnhashableError as error:
        return CodeHash(secrets.token_hex(8), str(error))
    except Exception as error:  # of what it holds, which may have its own ways: endless nesting, attributes that raise
        return CodeHash(secrets.token_hex(8), walk.place(f"where {described(error)}"))
    return CodeHash(walk.digest.hexdigest())


def class_code(kind: type) -> str:
    """A hash of the methods that a class defines, and its parents; "" where all of them belong to libraries.

    What the methods call elsewhere is not followed.
    """
    own = [one for one in kind.__mro__ if not _is_library(one.__module__, _file_of_module(one.__module__))]
    return _code_of((f"{one.__qualname__}.{name}", value) for one in own for name, value in vars(one).items())


def own_code(function: Callable) -> str:
    """A hash of a function's code; "" of one that belongs to a library."""
    function = getattr(function, "__func__", function)
    module = str(getattr(function, "__module__", ""))
    return "" if _is_library(module, _file_of_module(module)) else _code_of([("", function)])


def _code_of(named: Iterable[tuple[str, object]]) -> str:
    walk, empty = _Walk(), True
    for name, value in named:
        function = getattr(value, "__func__", getattr(value, "fget", value))  # of class methods and properties
        if isinstance(function, FunctionType):
            empty = False
            walk.text(name)
            walk.code(function.__code__)
    return "" if empty else walk.digest.hexdigest()


def file_of(function: Callable) -> str:
    """The name of the file of a function, or of an object's class, without its folder; "" where there is no source."""
    try:
        kind = function if inspect.isroutine(function) or inspect.isclass(function) else type(function)
        inspect.getsource(kind)
        file = inspect.getsourcefile(kind) or ""
    except (OSError, TypeError):
        return ""
    return "a notebook" if "ipykernel" in file else Path(file).name


def name_of(function: Callable) -> str:
    """The name of a function, or of the class of a callable object."""
    inner = _inner(function)
    return getattr(inner, "__name__", type(inner).__name__)


def first_line(function: Callable) -> str:
    """The first line of the docstring of a function, or of the class of a callable object; "" without one."""
    inner = _inner(function)
    documented = inner if inspect.isroutine(inner) else type(inner)
    return one_line((inspect.getdoc(documented) or "").partition("\n")[0])


def _inner(function: Callable) -> Callable:
    return function.func if isinstance(function, partial) else function


class _Walk:
    """Feeds a digest with everything that can be reached from a value, each mutable thing once."""

    def __init__(self) -> None:
        self.digest = blake2b(digest_size=8)
        self.seen: dict[object, int] = {}
        self.kept: list[object] = []  # alive, so that no other object gets the identity of one of these
        self.labels: list[str] = []

    def text(self, *words: object) -> None:
        for word in words:
            content = word if isinstance(word, bytes) else str(word).encode("utf-8", "surrogatepass")
            self.digest.update(len(content).to_bytes(8, "little") + content)

    def is_new(self, value: object, *more: object) -> bool:
        key = (id(value), *more)
        if key in self.seen:
            self.text("again", self.seen[key])
            return False
        self.seen[key] = len(self.seen)
        self.kept.append(value)
        return True

    @contextmanager
    def inside(self, label: str) -> Iterator[None]:
        """label: how what is added here is called."""
        self.labels.append(label)
        self.text(label)
        yield
        self.labels.pop()

    def add(self, value: Any, names: Iterable[str] = ()) -> None:
        """names: of the code that holds the value, which say what it may use of a module."""
        kind = type(value)
        if kind in PLAIN:
            self.text(kind.__name__, repr(value))
        elif kind is CodeType:
            self.code(value)
        elif kind is tuple:  # of constants, whose identity is up to the compiler
            self.items("tuple", value)
        elif kind in (set, frozenset):
            self.text(kind.__name__, *sorted(_digest(one) for one in value))
        elif isinstance(value, ModuleType):
            self.module(value, names)
        elif isinstance(value, BY_NAME):
            self.named(value)
        elif self.is_new(value):
            self.mutable(value, kind)

    def mutable(self, value: Any, kind: type) -> None:
        if isinstance(value, type):
            self.type(value)
        elif kind is FunctionType:
            self.function(value)
        elif kind is list:
            self.items("list", value)
        elif kind in (dict, MappingProxyType):
            self.items("dict", (one for pair in value.items() for one in pair))
        elif isinstance(value, np.ndarray) and value.dtype.kind != "O":
            self.text("array", value.dtype.str, value.shape, value.tobytes())
        elif isinstance(value, torch.Tensor):
            self.tensor(value)
        elif kind is MethodType:
            self.items("method", (value.__func__, value.__self__))
        elif kind in (staticmethod, classmethod):
            self.items(kind.__name__, (value.__func__,))
        elif kind is property:
            self.items("property", (value.fget, value.fset, value.fdel))
        elif kind is cached_property:
            self.items("cached_property", (value.func,))
        elif isinstance(value, logging.Logger):
            self.text("logger", value.name)
        elif hasattr(value, "cache_info") and hasattr(value, "__wrapped__"):
            self.items("cached", (value.__wrapped__,))
        else:
            self.object(value)

    def items(self, what: str, values: Iterable[object]) -> None:
        self.text(what)
        for value in values:
            self.add(value)
        self.text("end")

    def code(self, code: CodeType) -> None:
        for name in CODE:
            value = getattr(code, name, b"")
            self.items(name, value) if isinstance(value, tuple) else self.text(name, value)

    def named(self, value: Any) -> None:
        self.text(type(value).__name__, getattr(value, "__module__", ""), getattr(value, "__qualname__", ""))
        if (owner := getattr(value, "__self__", None)) is not None and not isinstance(owner, ModuleType):
            self.add(owner)

    def function(self, function: FunctionType) -> None:
        if _is_library(function.__globals__.get("__name__"), function.__code__.co_filename):
            self.text("function", function.__module__, function.__qualname__)
            self.version_of(function.__module__)
            if _is_importable(function):
                return  # else it may be a wrapper of one of yours
        else:
            self.own(function)
        names = sorted(_names(function.__code__))
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            with self.inside(name):
                self.add(_contents(cell), names)
        self.items("defaults", function.__defaults__ or ())
        self.add(function.__kwdefaults__)
        self.add(vars(function) or None)

    def own(self, function: FunctionType) -> None:
        """Code, and what it names."""
        self.text("own")
        code, scope = function.__code__, function.__globals__
        self.code(code)
        names = _names(code)
        for name in sorted(_globals(code) & scope.keys()):
            with self.inside(name):
                self.add(scope[name], names)
        for module in sorted(_imported(code, str(scope.get("__package__") or ""))):
            with self.inside(module):
                self.module(_module(module), names)

    def module(self, module: ModuleType, names: Iterable[str]) -> None:
        """Of one of your own what the names say."""
        self.text("module")
        if _is_library(module.__name__, _file_of_module(module.__name__)):
            self.text(module.__name__)
            return
        if not names:
            raise UnhashableError(self.place(f"the module {module.__name__} as a value"))
        for name in sorted(set(names) & vars(module).keys()):
            if self.is_new(module, name):
                with self.inside(name):
                    self.add(vars(module)[name], names)

    def type(self, kind: type) -> None:
        self.text("class")
        # Classes written in C may not say where they come from.
        module = kind.__module__ if isinstance(kind.__module__, str) else "builtins"
        if _is_library(module, _file_of_module(module)):
            self.text(module, kind.__qualname__)
            self.version_of(module)
            return
        self.items("parents", kind.__bases__)
        self.add(type(kind))
        for name, value in vars(kind).items():
            if name not in SKIPPED:
                with self.inside(name):
                    self.add(value)

    def version_of(self, module: str) -> None:
        """Of an explainer or metric of this package, whose results change with it."""
        if module.partition(".")[0] == OURS:
            self.text(getattr(sys.modules.get(module), "VERSION", ""))

    def tensor(self, value: torch.Tensor) -> None:
        try:
            content = value.detach().reshape(-1).cpu().contiguous().view(torch.uint8).numpy().tobytes()
        except (RuntimeError, TypeError, NotImplementedError) as error:
            raise UnhashableError(self.place(f"a tensor of layout {value.layout}")) from error
        self.text("tensor", value.dtype, tuple(value.shape), content)

    def object(self, value: Any) -> None:
        """Taken apart as pickle does, and all its attributes."""
        held = getattr(value, "__dict__", {})  # first: some objects make it only when asked, and then show it below
        try:
            reduced = value.__reduce_ex__(4)
        except Exception as error:  # any class may have its own ways
            raise UnhashableError(self.place(f"a {type(value).__name__}")) from error
        self.text("object")
        self.add(type(value))
        if isinstance(reduced, str):
            self.text(reduced)
        else:
            made_by, given, state, listed, mapped = (*reduced, None, None, None)[:5]
            self.items("made", (made_by, given))
            if isinstance(state, dict):
                self.attributes(state)
            else:
                self.add(state)
            self.items("items", listed or ())
            self.items("pairs", (one for pair in mapped or () for one in pair))
        self.attributes(held)

    def attributes(self, held: dict) -> None:
        for name, value in held.items():
            with self.inside(str(name)):
                self.add(value)

    def place(self, what: str) -> str:
        """In words that follow "depends on"."""
        return f"{'.'.join(self.labels)} ({what})" if self.labels else what


def _digest(value: object) -> bytes:
    walk = _Walk()
    walk.add(value)
    return walk.digest.digest()


def _contents(cell: Any) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # of a function that is defined later
        return NotImplemented


def _nested(code: CodeType) -> Iterator[CodeType]:
    """Code, and that of the functions inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _nested(constant)


def _names(code: CodeType) -> set[str]:
    """All names in code: globals, attributes, imported modules."""
    return {name for one in _nested(code) for name in one.co_names}


def _globals(code: CodeType) -> set[str]:
    loads = ("LOAD_GLOBAL", "LOAD_NAME")
    return {step.argval for one in _nested(code) for step in dis.get_instructions(one) if step.opname in loads}


def _imported(code: CodeType, package: str) -> set[str]:
    """Modules that code imports as it runs, and what may be modules in them."""
    found: set[str] = set()
    for one in _nested(code):
        steps = list(dis.get_instructions(one))
        for number, step in enumerate(steps):
            if step.opname == "IMPORT_NAME":
                level, members = (before.argval for before in steps[number - 2 : number])
                name = importlib.util.resolve_name("." * level + step.argval, package) if level else step.argval
                found |= {name, name.partition(".")[0], *(f"{name}.{member}" for member in members or ())}
    return {name for name in found if _is_module(name)}


def _is_module(name: str) -> bool:
    try:
        return name in sys.modules or importlib.util.find_spec(name) is not None
    except (ImportError, ValueError, AttributeError):  # a member that is no module
        return False


def _module(name: str) -> ModuleType:
    """Imported, if it is your own and was not yet; a library need not be."""
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.find_spec(name)
    if spec is None or _is_library(name, spec.origin):
        return ModuleType(f"{OURS}.{name}")  # which counts by its name
    try:
        return importlib.import_module(name)
    except Exception as error:
        raise UnhashableError(f"the module {name}, which cannot be imported") from error


def _file_of_module(name: str) -> str | None:
    """The file of a module, or of the package it is in; of a package of several folders the first folder."""
    for known in (sys.modules.get(name), sys.modules.get(name.partition(".")[0])):
        if found := getattr(known, "__file__", None) or next(iter(getattr(known, "__path__", ())), None):
            return found
    return None


def _is_library(module: object, file: str | None) -> bool:
    """Whether a module belongs to Python, to what is installed, or to this package."""
    package = str(module).partition(".")[0]
    if package == OURS:
        return True
    if file is None:
        return package in sys.builtin_module_names or package in sys.stdlib_module_names
    installed = {"site-packages", "dist-packages"} & set(Path(file).parts)
    return bool(installed) or file.startswith(("<frozen", *(f"{folder}{os.sep}" for folder in LIBRARIES)))


def _is_importable(function: FunctionType) -> bool:
    """Whether it is what its module calls so."""
    found: Any = sys.modules.get(function.__module__)
    if found is None or not _is_library(function.__module__, _file_of_module(function.__module__)):
        return False
    for name in function.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is function
