"""Compute the version of a user's function as a hash of all code and values that the function uses.

    code_hash(function)        # CodeHash(version="5f0c...", unhashable="")

The function is pickled like an argument of `Dataset.map`: its code, defaults and closures, and the contents of the
globals that it names. The user's own functions that it calls are pickled in the same way. Modules and importable
classes are pickled only by name, so the source files of the user's own modules are hashed too: the modules that the
function refers to, and the user's modules that these import. Objects from Python, an installed library or this package
are hashed by name, and by version if they declare one.

A change in a helper's file therefore changes the version even if the function does not use the changed code.
It is better to recompute too often than too rarely. The hash does not cover inputs that a function reads only at run
time: files, environment variables, the network, and modules imported by a computed name.
"""

import ast
import dis
import importlib.util
import inspect
import os
import secrets
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from hashlib import blake2b
from io import BytesIO
from pathlib import Path
from pickletools import genops
from time import time
from types import CellType, CodeType, FunctionType, ModuleType
from typing import Any

from saliency_bench.errors import described, one_line

LIBRARIES = {sysconfig.get_path(kind) for kind in ("stdlib", "platstdlib", "purelib", "platlib")}
LIBRARIES.add(os.path.dirname(os.__file__))
INSTALLED = {"site-packages", "dist-packages"}  # including folders of other interpreters on PYTHONPATH
THIS_PACKAGE = "saliency_bench"
COMPILED_FROM = "_torchdynamo_orig_callable"  # attribute of compiled functions: the function before `torch.compile`
STARTED = time()  # a file edited after this time may differ from the code that this process has imported


@dataclass(frozen=True)
class CodeHash:
    """The version of a function.

    Attributes:
        version: Hash of 16 hexadecimal digits. If the function cannot be hashed, every call returns a different
            version.
        unhashable: Short reason why the function cannot be hashed, or "" if it can be hashed.
    """

    version: str
    unhashable: str = ""


class EditedError(Exception):
    """The file of a module was edited after the module was imported."""


def code_hash(function: Callable) -> CodeHash:
    """Hash a function, or a callable object including its attributes."""
    try:
        pickled = _pickled(function)
        names = _module_names(pickled)
        sources = [_source(name, file) for name, file in _own_files(names).items()]
        ours = [name for name in names if name.partition(".")[0] == THIS_PACKAGE]
        versions = [_versions(sys.modules[name]) for name in ours]
    except Exception as error:  # pickling calls methods of all objects that the function refers to
        return CodeHash(secrets.token_hex(8), described(error))
    return CodeHash(_digest([pickled, *sources, *(version.encode() for version in versions)]))


def _versions(module: ModuleType) -> str:
    """Return the version of one of this package's modules, and the versions that its functions declare."""
    declared = (getattr(getattr(value, "declaration", None), "version", None) for value in vars(module).values())
    return " ".join(str(version) for version in (getattr(module, "VERSION", None), *declared) if version is not None)


def package_code(module: str) -> str:
    """Return a hash of the source of an imported module and of the modules that it imports from its own package.

    The hash covers the bytes of the files, which are equal on all machines with the same release.
    """
    root, waiting = module.partition(".")[0], [module]
    files: dict[str, Path] = {}
    while waiting:
        name = waiting.pop()
        if name not in files and name.partition(".")[0] == root and (file := _file(name)) is not None:
            files[name] = file
            waiting += _imported(name, file) if file.suffix == ".py" else ()
    return _digest(part for name, file in sorted(files.items()) for part in (name.encode(), file.read_bytes()))


def file_of(function: Callable) -> str:
    """Return the name of the file that defines a function or an object's class, or "" if there is no source file."""
    try:
        kind = function if inspect.isroutine(function) or inspect.isclass(function) else type(function)
        inspect.getsource(kind)
        file = inspect.getsourcefile(kind) or ""
    except (OSError, TypeError):
        return ""
    if file.startswith("<"):  # code from `python -c`, whose source newer Python versions store
        return ""
    return "a notebook" if "ipykernel" in file else Path(file).name


def name_of(function: Callable) -> str:
    """Return the name of a function, or of the class of a callable object."""
    inner = _inner(function)
    return getattr(inner, "__name__", type(inner).__name__)


def first_line(function: Callable) -> str:
    """Return the first docstring line of a function or of a callable object's class, or "" if there is no docstring."""
    inner = _inner(function)
    documented = inner if inspect.isroutine(inner) else type(inner)
    return one_line((inspect.getdoc(documented) or "").partition("\n")[0])


def _inner(function: Callable) -> Callable:
    """Return the function wrapped by a `functools.partial`, or `function` itself if it is not a partial."""
    return function.func if isinstance(function, partial) else function


def _digest(parts: Iterable[bytes]) -> str:
    """Return a hash of byte strings and their lengths, as 16 hexadecimal digits."""
    digest = blake2b(digest_size=8)
    for part in parts:
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.hexdigest()


@cache
def _pickler() -> type:
    """Return the pickler that `datasets` uses for fingerprints, extended to modules and sets."""
    from datasets.utils._dill import Pickler  # imported here, because it imports pyarrow and pandas
    from dill._dill import _locate_function

    class ContentPickler(Pickler):
        def save(self, value: Any, *arguments: Any, **options: Any) -> None:
            if type(value) is FunctionType:
                value = getattr(value, COMPILED_FROM, value)
            is_own = type(value) is FunctionType and not (_locate_function(value) and is_library(value.__module__))
            if is_own and id(value) not in self.memo:
                # dill would search the globals of all called functions, including those of libraries, and would never
                # finish if functions call each other. `save_reduce` memoizes a function before its state.
                self.save_reduce(FunctionType, (value.__code__, {}, value.__name__), _state(value), obj=value)
            elif isinstance(value, ModuleType):
                # Pickle modules by name, because dill would add their contents and paths. `code_hash` hashes them.
                self.save_reduce(importlib.import_module, (value.__name__,), obj=value)
            elif type(value) in (set, frozenset) and id(value) not in self.memo:
                # Sort sets, whose order differs between processes; `x in {"a", "b"}` in code creates a frozenset.
                self.save_reduce(type(value), (sorted(value, key=_dumps),), obj=value)
            else:
                super().save(value, *arguments, **options)

    return ContentPickler


def _state(function: FunctionType) -> tuple:
    """Return the values that a function uses besides its code: defaults, closure, attributes, and globals by name."""
    names = sorted(global_names(function.__code__) & function.__globals__.keys())
    return (
        function.__module__,
        function.__qualname__,
        function.__defaults__,
        function.__kwdefaults__,
        [cell_contents(cell) for cell in function.__closure__ or ()],
        vars(function),
        [(name, function.__globals__[name]) for name in names],
    )


def _dumps(value: object) -> bytes:
    """Serialise a value to bytes that are equal in all processes for equal values."""
    buffer = BytesIO()
    _pickler()(buffer, recurse=True).dump(value)
    return buffer.getvalue()


def _pickled(value: object) -> bytes:
    """Return the pickle of a function with its code and globals, or of any other value."""
    if isinstance(value, FunctionType) and hasattr(value, COMPILED_FROM):
        return _pickled(getattr(value, COMPILED_FROM))
    if isinstance(value, FunctionType):
        # An importable function would be pickled only by its name. A copy of the function is not the module's attribute
        # of that name, so the copy is pickled with its code and the globals that it names.
        copied = FunctionType(value.__code__, value.__globals__, value.__name__, value.__defaults__, value.__closure__)
        copied.__kwdefaults__, copied.__module__ = value.__kwdefaults__, value.__module__
        copied.__qualname__ = value.__qualname__
        return _dumps((copied, vars(value)))
    if isinstance(value, partial):
        return _dumps((_pickled(value.func), value.args, value.keywords))
    return _dumps(value)


def _module_names(pickled: bytes) -> list[str]:
    """Return the names of the loaded modules that a pickle contains, or whose functions or classes it contains."""
    texts = {word for _, text, _ in genops(pickled) if isinstance(text, str) for word in text.split(" ")[:1]}
    return sorted(texts & sys.modules.keys())


def _own_files(names: Iterable[str]) -> dict[str, Path]:
    """Return {module: file} for the user's own modules among `names`, and for the user's modules that they import."""
    files: dict[str, Path] = {}
    waiting = [name for name in names if name != "__main__"]  # functions in __main__ are pickled with their code
    while waiting:
        name = waiting.pop()
        if name not in files and (file := _own_file(name)) is not None:
            files[name] = file
            waiting += _imported(name, file)
    return dict(sorted(files.items()))


def _own_file(name: str) -> Path | None:
    """Return the Python file of the user's own module, or None for a library or a missing module."""
    file = _file(name)
    return None if is_library(name) or file is None or file.suffix != ".py" else file


@cache
def is_library(module: str) -> bool:
    """Return whether a module belongs to Python, an installed library, or this package."""
    package = module.partition(".")[0]
    if package == "__main__":
        return False
    if package == THIS_PACKAGE:
        return True
    file = _file(module) or _file(package) or Path()
    if package in sys.stdlib_module_names and not file.is_absolute():  # a built-in module
        return True
    return bool(INSTALLED & set(file.parts)) or any(file.is_relative_to(folder) for folder in LIBRARIES)


def _file(module: str) -> Path | None:
    try:
        spec = sys.modules[module].__spec__ if module in sys.modules else importlib.util.find_spec(module)
    except (ImportError, ValueError, AttributeError):  # the name is an attribute of a module, not a submodule
        return None
    origin = getattr(spec, "origin", None)
    return None if origin is None else Path(origin)


def _imported(name: str, file: Path) -> Iterator[str]:
    """Yield the names that a module imports anywhere, including possible submodules."""
    package = name if file.name == "__init__.py" else name.rpartition(".")[0]
    for node in _parsed(file.read_bytes())[1]:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        else:
            relative = "." * node.level + (node.module or "")
            base = importlib.util.resolve_name(relative, package) if node.level else str(node.module)
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)


def _source(name: str, file: Path) -> bytes:
    """Return the syntax tree of a module's source as bytes, without comments and layout.

    Raises:
        EditedError: The file was edited after the import, so it may differ from the running code.
    """
    source = file.read_bytes()
    # Files that were not edited contain the imported code, although import hooks (type checkers, pytest) may transform
    # it.
    if name in sys.modules and file.stat().st_mtime > STARTED:
        written = set(nested(compile(source, file, "exec", dont_inherit=True)))
        functions = [value for value in vars(sys.modules[name]).values() if isinstance(value, FunctionType)]
        if any(f.__module__ == name and f.__code__ not in written for f in functions if _is_plain(f)):
            raise EditedError(f"{file.name} was edited after it was imported; import it again")
    return _parsed(source)[0]


@lru_cache(maxsize=128)
def _parsed(source: bytes) -> tuple[bytes, list[ast.Import | ast.ImportFrom]]:
    """Return the syntax tree of a module's source as bytes, and the statements of the tree that import modules."""
    tree = ast.parse(source)
    return ast.dump(tree).encode(), [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]


def _is_plain(function: FunctionType) -> bool:
    """Return whether a function is the object that its `def` created, rather than a decorator's replacement."""
    return not hasattr(function, "__wrapped__") and function.__code__.co_name == function.__name__


def nested(code: CodeType) -> Iterator[CodeType]:
    """Yield a code object and the code objects of all functions inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from nested(constant)


def global_names(code: CodeType) -> set[str]:
    """Return the globals and built-in functions that a function, or any function inside it, reads or writes."""
    operations = (operation for part in nested(code) for operation in dis.get_instructions(part))
    return {item.argval for item in operations if item.opname.endswith(("_GLOBAL", "_GLOBALS", "_NAME"))}


def cell_contents(cell: CellType) -> object:
    """Return the value of a variable in a closure, or None if the variable has no value yet."""
    try:
        return cell.cell_contents
    except ValueError:
        return None
