"""Read the declarations of explainers and metrics without torch.

Their files declare version, options and range next to the code that computes, and import torch for that code. If torch
is missing, `stand_ins` lets such a file be imported: each name of a missing library is an empty class, which works as a
base class, in an annotation or as a decorator. Calling it later raises the usual ModuleNotFoundError.
"""

import builtins
from abc import ABCMeta
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from threading import Lock, local
from typing import Any

# Requirements of the package for running but not for reading.
COMPUTING = ("accelerate", "evaluate", "safetensors", "torch", "torchvision", "transformers")
_import: Any = builtins.__import__
_lock, _thread, _open = Lock(), local(), 0


@contextmanager
def stand_ins(package: str) -> Iterator[None]:
    """Let this package and saliency_bench import missing libraries of `COMPUTING`, in this thread."""
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
    """Return the library of `COMPUTING` that an error reports as missing, or ""."""
    root = _root(error.name or "") if isinstance(error, ModuleNotFoundError) else ""
    return root if root in COMPUTING else ""


@cache
def _missing() -> frozenset[str]:
    """Return the libraries of `COMPUTING` that are not installed."""
    return frozenset(name for name in COMPUTING if find_spec(name) is None)


def _root(module: str) -> str:
    return module.partition(".")[0]


def _import_or_stand_in(name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0) -> Any:
    """Import like Python, but give the packages of this thread a stand-in for a missing library."""
    asking = _root(str((globals or {}).get("__name__", "")))
    if level == 0 and _root(name) in _missing() and asking in getattr(_thread, "packages", ()):
        return _StandIn(_root(name), (), {"__module__": _root(name)})
    return _import(name, globals, locals, fromlist, level)


class _StandIn(ABCMeta):
    """Metaclass of stand-ins: they are classes, so that they can be base classes and annotations."""

    def __getattr__(cls, name: str) -> "_StandIn":
        if name.startswith("__"):
            raise AttributeError(name)
        return _StandIn(name, (), {"__module__": cls.__module__})

    def __call__(cls, *_: object, **__: object) -> Any:
        if getattr(_thread, "packages", ()):
            return lambda function: function  # a decorator, such as torch.no_grad()
        library = next(base.__module__ for base in cls.__mro__ if _root(base.__module__) in COMPUTING)
        raise ModuleNotFoundError(f"No module named '{library}'", name=library)
