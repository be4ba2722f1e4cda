"""Read the declarations of explainers and metrics without torch.

The file of an explainer or metric declares its version, options and range, and imports torch for its computations. If
torch is missing, the file can be imported inside `stand_ins`, which replaces each name from a missing library with an
empty class. The class can serve as a base class, in an annotation or as a decorator. Calling it raises the usual
ModuleNotFoundError.
"""

import builtins
from abc import ABCMeta
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from threading import Lock, local
from typing import Any

# Libraries that the package requires for running explainers and metrics, but not for reading results.
COMPUTING = ("accelerate", "evaluate", "safetensors", "torch", "torchvision", "transformers")
_import: Any = builtins.__import__
_lock, _thread, _open = Lock(), local(), 0


@contextmanager
def stand_ins(package: str) -> Iterator[None]:
    """Let `package` and saliency_bench import missing libraries of `COMPUTING` as stand-ins, in this thread."""
    global _open
    if not _missing():
        yield
        return
    before = getattr(_thread, "packages", ())
    with _lock:
        _open += 1
        builtins.__import__ = _import_or_stand_in
    _thread.packages = (*before, package, "saliency_bench")
    try:
        yield
    finally:
        _thread.packages = before
        with _lock:
            _open -= 1
            if not _open:
                builtins.__import__ = _import


def lacking(error: BaseException) -> str:
    """Return the library in `COMPUTING` that an error reports as missing, or ""."""
    root = _root(error.name or "") if isinstance(error, ModuleNotFoundError) else ""
    return root if root in COMPUTING else ""


@cache
def _missing() -> frozenset[str]:
    """Return the libraries of `COMPUTING` that are not installed."""
    return frozenset(name for name in COMPUTING if find_spec(name) is None)


def _root(module: str) -> str:
    return module.partition(".")[0]


def _import_or_stand_in(name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0) -> Any:
    """Import a module as Python does, but return a stand-in if a missing library is imported inside `stand_ins`."""
    asking = _root(str((globals or {}).get("__name__", "")))
    if level == 0 and _root(name) in _missing() and asking in getattr(_thread, "packages", ()):
        return _StandIn(_root(name), (), {"__module__": _root(name)})
    return _import(name, globals, locals, fromlist, level)


class _StandIn(ABCMeta):
    """Metaclass of stand-ins. A stand-in must be a class, because it may be used as a base class or annotation."""

    def __getattr__(cls, name: str) -> "_StandIn":
        if name.startswith("__"):
            raise AttributeError(name)
        return _StandIn(name, (), {"__module__": cls.__module__})

    def __call__(cls, *_: object, **__: object) -> Any:
        if getattr(_thread, "packages", ()):
            return lambda function: function  # for use as a decorator, such as torch.no_grad()
        library = next(base.__module__ for base in cls.__mro__ if _root(base.__module__) in COMPUTING)
        raise ModuleNotFoundError(f"No module named '{library}'", name=library)
