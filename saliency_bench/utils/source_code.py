"""The version of your own function: a hash of what it computes with.

    code_hash(function)        # CodeHash(version="5f0c...", unhashable="")

`datasets` hashes the function as it hashes what `Dataset.map` is given: code, defaults, closures, and the globals that
it names, by their contents. What it refers to in a module that can be imported enters that hash by name only, so the
sources of your own files are hashed with it: those of the modules that it refers to, and of all that these import. What
belongs to Python, an installed library or this package counts by its name, and its version where it declares one.

So a change in a helper's file gives another version even if the function does not use what changed: it is computed
anew once too often rather than once too little. Not seen is what a function looks up only as it runs: files,
environment variables, the network, modules imported by a computed name.
"""

import ast
import importlib.util
import inspect
import os
import secrets
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from hashlib import blake2b
from io import BytesIO
from pathlib import Path
from pickletools import genops
from time import time
from types import CodeType, FunctionType, ModuleType
from typing import Any

from saliency_bench.errors import described, one_line

LIBRARIES = {sysconfig.get_path(kind) for kind in ("stdlib", "platstdlib", "purelib", "platlib")}
THIS_PACKAGE = "saliency_bench"
STARTED = time()  # files edited since then may not be what this process has imported


@dataclass(frozen=True)
class CodeHash:
    """A hash of a function.

    Attributes:
        version: 16 hexadecimal digits.
        unhashable: why the function cannot be hashed, in a few words, and its version is another one each time; "" if
            it can.
    """

    version: str
    unhashable: str = ""


class EditedError(Exception):
    """The file of a module is no longer the code that was imported."""


def code_hash(function: Callable) -> CodeHash:
    """Return the hash of a function, or of a callable object with all that it holds."""
    try:
        pickled = _pickled(function)
        names = _module_names(pickled)
        # As syntax trees, in which comments and layout are not.
        sources = [ast.dump(ast.parse(_source(module))).encode() for module in _own_modules(names)]
        versions = [_versions(sys.modules[name]) for name in names if _is_this_package(name)]
    except Exception as error:  # pickling calls methods of whatever the function holds
        return CodeHash(secrets.token_hex(8), described(error))
    return CodeHash(_digest([pickled, *sources, *(version.encode() for version in versions)]))


def _versions(module: ModuleType) -> str:
    """Return what a module of this package says of its version, and what its functions declare."""
    declared = (getattr(getattr(value, "declaration", None), "version", None) for value in vars(module).values())
    return " ".join(str(version) for version in (getattr(module, "VERSION", None), *declared) if version is not None)


def class_code(kind: type) -> str:
    """Return a hash of the methods that a class and its parents define; "" if all of them belong to libraries.

    What the methods call elsewhere is not followed.
    """
    parents = [parent for parent in kind.__mro__ if not _is_library(parent.__module__)]
    methods = [getattr(value, "__func__", getattr(value, "fget", value)) for p in parents for value in vars(p).values()]
    return _code_of(method for method in methods if isinstance(method, FunctionType))


def own_code(function: Callable) -> str:
    """Return a hash of a function's code; "" if it belongs to a library."""
    function = getattr(function, "__func__", function)
    module = str(getattr(function, "__module__", ""))
    return "" if _is_library(module) or not isinstance(function, FunctionType) else _code_of([function])


def file_of(function: Callable) -> str:
    """Return the name of the file that defines a function or an object's class; "" if there is no source."""
    try:
        kind = function if inspect.isroutine(function) or inspect.isclass(function) else type(function)
        inspect.getsource(kind)
        file = inspect.getsourcefile(kind) or ""
    except (OSError, TypeError):
        return ""
    if file.startswith("<"):  # as of `python -c`, whose source newer Pythons keep
        return ""
    return "a notebook" if "ipykernel" in file else Path(file).name


def name_of(function: Callable) -> str:
    """Return the name of a function, or of the class of a callable object."""
    inner = _inner(function)
    return getattr(inner, "__name__", type(inner).__name__)


def first_line(function: Callable) -> str:
    """Return the first line of the docstring of a function, or of a callable object's class; "" without one."""
    inner = _inner(function)
    documented = inner if inspect.isroutine(inner) else type(inner)
    return one_line((inspect.getdoc(documented) or "").partition("\n")[0])


def _inner(function: Callable) -> Callable:
    """Return the function that a `functools.partial` binds, or the function itself."""
    return function.func if isinstance(function, partial) else function


def _digest(parts: Iterable[bytes]) -> str:
    """Return 16 hexadecimal digits of byte strings, each with its length."""
    digest = blake2b(digest_size=8)
    for part in parts:
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.hexdigest()


@cache
def _pickler() -> type:
    """Return the pickler by which `datasets` fingerprints values, with two additions."""
    from datasets.utils._dill import Pickler  # here, as it imports pyarrow and pandas

    class ContentPickler(Pickler):
        def save(self, value: Any, *arguments: Any, **options: Any) -> None:
            if isinstance(value, ModuleType):
                # By name: dill would add all that the module holds, its path too. `code_hash` hashes its source.
                self.save_reduce(importlib.import_module, (value.__name__,), obj=value)
            elif type(value) in (set, frozenset) and id(value) not in self.memo:
                # Their order is another in each process; `x in {"a", "b"}` in code makes a frozenset.
                self.save_reduce(type(value), (sorted(value, key=_dumps),), obj=value)
            else:
                super().save(value, *arguments, **options)

    return ContentPickler


def _dumps(value: object) -> bytes:
    """Return bytes that are equal in all processes for equal contents."""
    buffer = BytesIO()
    _pickler()(buffer, recurse=True).dump(value)
    return buffer.getvalue()


def _pickled(value: object) -> bytes:
    """Return the pickle of a function with its code and globals, or of any other value."""
    if isinstance(value, FunctionType):
        # A function that can be imported would be pickled by its name alone. A copy of it is not what its module calls
        # so, and is pickled with its code and the globals that it names.
        copied = FunctionType(value.__code__, value.__globals__, value.__name__, value.__defaults__, value.__closure__)
        copied.__kwdefaults__, copied.__module__ = value.__kwdefaults__, value.__module__
        copied.__qualname__ = value.__qualname__
        return _dumps((copied, vars(value)))
    if isinstance(value, partial):
        return _dumps((_pickled(value.func), value.args, value.keywords))
    return _dumps(value)


def _code_of(functions: Iterable[FunctionType]) -> str:
    """Return a hash of the bytecode and constants of functions; "" of none."""
    parts = [_pickled(function.__code__) for function in functions]
    return _digest(parts) if parts else ""


def _module_names(pickled: bytes) -> list[str]:
    """Return the names of loaded modules that occur in a pickle: those of functions, classes and modules in it."""
    texts = {word for _, text, _ in genops(pickled) if isinstance(text, str) for word in text.split(" ")[:1]}
    return sorted(texts & sys.modules.keys())


def _own_modules(names: Iterable[str]) -> list[ModuleType]:
    """Return the modules of these names that are your own, and all of your own that they import, sorted by name."""
    modules: dict[str, ModuleType] = {}
    waiting = [name for name in names if name != "__main__"]
    while waiting:
        name = waiting.pop()
        if name in modules or _is_library(name):
            continue
        modules[name] = importlib.import_module(name)
        waiting += [imported for imported in _imported(modules[name]) if _exists(imported)]
    return [modules[name] for name in sorted(modules)]


def _imported(module: ModuleType) -> Iterator[str]:
    """Yield the names that a module imports at any place, with what may be submodules."""
    for node in ast.walk(ast.parse(_source(module))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            relative = "." * node.level + (node.module or "")
            package = module.__package__ or None
            base = importlib.util.resolve_name(relative, package) if node.level else str(node.module)
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)


def _exists(name: str) -> bool:
    """Return whether a module of this name is loaded or can be imported."""
    try:
        return name in sys.modules or importlib.util.find_spec(name) is not None
    except (ImportError, ValueError, AttributeError):  # a member of a module that is none itself
        return False


def _source(module: ModuleType) -> bytes:
    """Return the source of a module; empty for a package without one, and for compiled code.

    Raises:
        EditedError: The file was edited after the import, so that it does not say what runs.
    """
    file = getattr(module, "__file__", None)
    if file is None or not file.endswith(".py"):
        return b""
    source = Path(file).read_bytes()
    # Older files are what was imported; import hooks (type checkers, pytest) may make other code of them.
    if Path(file).stat().st_mtime > STARTED:
        written = set(_nested(compile(source, file, "exec", dont_inherit=True)))
        functions = [value for value in vars(module).values() if isinstance(value, FunctionType)]
        if any(f.__module__ == module.__name__ and f.__code__ not in written for f in functions if _is_plain(f)):
            raise EditedError(f"{Path(file).name} was edited after it was imported; import it again")
    return source


def _is_plain(function: FunctionType) -> bool:
    """Return whether a function is the one that its `def` made: no decorator has put another one in its place."""
    return not hasattr(function, "__wrapped__") and function.__code__.co_name == function.__name__


def _nested(code: CodeType) -> Iterator[CodeType]:
    """Yield code and that of the functions inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _nested(constant)


def _is_this_package(module: str) -> bool:
    """Return whether a module belongs to saliency-bench."""
    return module.partition(".")[0] == THIS_PACKAGE


def _is_library(module: str) -> bool:
    """Return whether a module belongs to Python, to what is installed, or to this package."""
    package = module.partition(".")[0]
    if package in sys.stdlib_module_names and package != "__main__":
        return True
    file = _file_of_module(module)
    if _is_this_package(module) or file is None:
        return _is_this_package(module)
    installed = {"site-packages", "dist-packages"} & set(Path(file).parts)
    return bool(installed) or file.startswith(tuple(f"{folder}{os.sep}" for folder in LIBRARIES))


def _file_of_module(name: str) -> str | None:
    """Return the file of a module, or of the package that it is in; of a package of several folders the first one."""
    for candidate in (name, name.partition(".")[0]):
        module = sys.modules.get(candidate)
        spec = None if module is not None else _spec(candidate)
        file = getattr(module, "__file__", None) or getattr(spec, "origin", None)
        if path := file or next(iter(getattr(module, "__path__", ())), None):
            return path
    return None


def _spec(name: str) -> importlib.machinery.ModuleSpec | None:
    """Return the spec of a module that is not loaded, if it can be found."""
    try:
        return importlib.util.find_spec(name)
    except (ImportError, ValueError, AttributeError):
        return None
