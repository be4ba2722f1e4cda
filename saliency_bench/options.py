"""Options of explainers and metrics: keyword-only parameters of their function, with defaults.

On the command line they follow the name: `rise:masks=1000,p=0.3`.
"""

import inspect
import json
from collections.abc import Callable
from types import ModuleType, NoneType, UnionType
from typing import get_args, get_type_hints

from saliency_bench.errors import UserError, unknown


def parse(text: str) -> tuple[str, dict[str, object]]:
    """("rise", {"masks": 1000}) of "rise:masks=1000". Values are parsed as JSON, else kept as text."""
    name, _, rest = text.partition(":")
    options: dict[str, object] = {}
    for pair in filter(None, rest.split(",")):
        key, equals, value = pair.partition("=")
        if not equals:
            raise UserError(f"'{pair}' in '{text}' is not OPTION=VALUE; write for example rise:masks=1000,p=0.3")
        try:
            options[key.strip()] = json.loads(value)
        except json.JSONDecodeError:
            options[key.strip()] = {"None": None, "True": True, "False": False}.get(value, value)
    return name.strip(), options


def defaults(function: Callable) -> dict[str, object]:
    """{option: default} of a function's keyword-only parameters; `seeds` comes from the caller and is not an option."""
    parameters = inspect.signature(function).parameters.values()
    return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY and p.name != "seeds"}


def positional(function: Callable) -> tuple[str, ...]:
    parameters = inspect.signature(function).parameters.values()
    return tuple(p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD)


def resolved(owner: str, function: Callable, options: dict[str, object]) -> tuple[tuple[str, object], ...]:
    """All options with their values, defaults filled in, sorted by name.

    Raises: UserError for an unknown option (with the nearest names), or a value of another type.
    """
    known, allowed = defaults(function), _types(function)
    for key, value in options.items():
        if key not in known:
            if not known:
                raise UserError(f"{owner} has no options; got {key}={value}")
            raise unknown(f"option of {owner}", key, known)
        if not isinstance(value, allowed.get(key, object)) or (
            isinstance(value, bool) and known[key] not in (True, False)
        ):
            raise UserError(f"option {key} of {owner} takes {_spelled(allowed[key])}; got {value!r}")
    # 0 and 0.0 are one number, so they must have one identity.
    chosen = {key: float(value) if isinstance(known[key], float) and isinstance(value, int) else value
              for key, value in options.items()}  # fmt: skip
    return tuple(sorted((known | chosen).items()))


def _types(function: Callable) -> dict[str, tuple[type, ...]]:
    """{option: the types its annotation allows}; an int counts as a float. Options without annotation take anything."""
    allowed = {}
    for name, hint in get_type_hints(function).items():
        types = get_args(hint) if isinstance(hint, UnionType) else (hint,)
        if all(isinstance(kind, type) for kind in types):
            allowed[name] = (*types, int) if float in types else types
    return allowed


def _spelled(types: tuple[type, ...]) -> str:
    names = dict.fromkeys("text" if kind is str else "nothing" if kind is NoneType else kind.__name__ for kind in types)
    return " or ".join(name for name in names if not (name == "int" and float in types))


def check(module: ModuleType, options: tuple[tuple[str, object], ...]) -> None:
    """Call the module's `check`, if it has one. Raises: UserError with its message."""
    if hasattr(module, "check"):
        try:
            module.check(**dict(options))
        except UserError:
            raise
        except ValueError as error:
            raise UserError(str(error)) from error


def text(options: tuple[tuple[str, object], ...]) -> str:
    """Canonical JSON of resolved options, for identities and records."""
    return json.dumps(dict(options), sort_keys=True, default=repr)
