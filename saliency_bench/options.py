"""Options of explainers and metrics: keyword-only parameters of their function, with defaults.

On the command line they follow the name: `rise:masks=1000,p=0.3`.
"""

import inspect
import json
from collections.abc import Callable

from saliency_bench.errors import UserError, unknown


def parse(text: str) -> tuple[str, dict[str, object]]:
    """("rise", {"masks": 1000}) of "rise:masks=1000". Values are JSON where they can be, else text."""
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
    """{option: default} of a function's keyword-only parameters; `seeds` is the caller's, no option."""
    parameters = inspect.signature(function).parameters.values()
    return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY and p.name != "seeds"}


def positional(function: Callable) -> tuple[str, ...]:
    parameters = inspect.signature(function).parameters.values()
    return tuple(p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD)


def resolved(owner: str, function: Callable, options: dict[str, object]) -> tuple[tuple[str, object], ...]:
    """All options with their values, defaults filled in, sorted by name.

    Errors: UserError for an option the function does not have (with the nearest), or a value of another type.
    """
    known = defaults(function)
    for key, value in options.items():
        if key not in known:
            if not known:
                raise UserError(f"{owner} has no options; got {key}={value}")
            raise unknown(f"option of {owner}", key, known)
        if not _fits(value, known[key]):
            raise UserError(f"option {key} of {owner} takes {type(known[key]).__name__}; got {value!r}")
    return tuple(sorted((known | options).items()))


def _fits(value: object, default: object) -> bool:
    """Numbers stay numbers and switches stay switches; text and None defaults leave the check to the function."""
    if isinstance(default, bool):
        return isinstance(value, bool)
    if isinstance(default, int):
        return isinstance(value, int) and not isinstance(value, bool)
    return True


def text(options: tuple[tuple[str, object], ...]) -> str:
    """Canonical JSON of resolved options, for identities and records."""
    return json.dumps(dict(options), sort_keys=True)
