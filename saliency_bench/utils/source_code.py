"""The source of a function with what it uses of its own file, so that an edited helper is noticed."""

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FunctionType

PLAIN = (bool, int, float, str, bytes, type(None))


def source_of(function: Callable) -> str:
    """The source of a function, or of an object's class; of the functions and classes of the same file that it names,
    and of those that these name; and the module's constants among the names: numbers, texts and tuples of them.

    Not what is imported. Raises: OSError or TypeError where there is no source, as for what was typed at a prompt.
    """
    found: dict[str, str] = {}
    _collect(function if inspect.isfunction(function) else type(function), found)
    return "\n".join(found[name] for name in sorted(found))


def file_of(function: Callable) -> str:
    """The name of the file of a function, or of an object's class, without its folder; "" where there is no source."""
    try:
        kind = function if inspect.isroutine(function) or inspect.isclass(function) else type(function)
        inspect.getsource(kind)
        file = inspect.getsourcefile(kind) or ""
    except (OSError, TypeError):
        return ""
    return "a notebook" if "ipykernel" in file else Path(file).name


def _collect(item: Callable | type, found: dict[str, str]) -> None:
    name = f"{item.__module__}.{item.__qualname__}"
    if name in found:
        return
    found[name] = inspect.getsource(item)
    for function in [item] if isinstance(item, FunctionType) else vars(item).values():
        if not isinstance(function, FunctionType):
            continue
        for used in sorted(set(_names(function.__code__)) & set(function.__globals__)):
            value = function.__globals__[used]
            if (inspect.isfunction(value) or inspect.isclass(value)) and value.__module__ == function.__module__:
                _collect(value, found)
            elif _is_plain(value):
                found[f"{function.__module__}.{used}"] = f"{used} = {value!r}"


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:  # functions inside the function
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _is_plain(value: object) -> bool:
    return isinstance(value, PLAIN) or (isinstance(value, tuple) and all(map(_is_plain, value)))
