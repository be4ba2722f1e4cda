"""Options of explainers and metrics: keyword-only parameters with defaults.

On the command line, options follow the name: `rise:masks=1000,p=0.3`. The annotation of a parameter, such as
`Literal["max", "sum"]`, defines the allowed values. Other values cause an error when the explainer or metric is
created.
"""

import inspect
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import isfinite
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from saliency_bench.errors import UserError, unknown

JSON = ('"', "[", "{")  # start of a JSON text, list or object, whose commas do not separate options


def parse(text: str) -> tuple[str, dict[str, object]]:
    """Split "rise:masks=1000" into ("rise", {"masks": 1000}).

    Values are parsed as JSON. Values that are not JSON are strings. A comma inside a JSON string or list, as in
    `"a,b"`, does not separate options.

    Raises:
        UserError: The text after the colon does not have the form OPTION=VALUE.
    """
    name, _, rest = text.partition(":")
    options: dict[str, object] = {}
    for pair in _pairs(rest):
        key, equals, value = pair.partition("=")
        if not equals:
            raise UserError(f"'{pair}' in '{text}' is not OPTION=VALUE; write options as in rise:masks=1000,p=0.3")
        options[key.strip()] = _value(value)
    return name.strip(), options


def _pairs(text: str) -> Iterator[str]:
    """Yield the parts of a text that are separated by commas. Commas inside JSON do not count."""
    parts = text.split(",")
    while parts:
        # A JSON value is the shortest valid JSON text that ends at a comma. Any other value ends at the first comma.
        ends = range(1, len(parts) + 1) if parts[0].partition("=")[2].startswith(JSON) else range(0)
        joined = (",".join(parts[:end]) for end in ends)
        whole = next((pair for pair in joined if _is_json(pair.partition("=")[2])), parts[0])
        if whole:
            yield whole
        del parts[: whole.count(",") + 1]


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def _value(text: str) -> object:
    """Parse text as JSON or as Python's None, True or False. Return any other text unchanged."""
    return json.loads(text) if _is_json(text) else {"None": None, "True": True, "False": False}.get(text, text)


def spelled(value: object) -> str:
    """Format a value as text that `parse` can read.

    The result is plain text, or JSON if plain text would be parsed differently.
    """
    plain = str(value)
    if "," not in plain and plain.isprintable() and not plain.startswith(JSON) and type(_value(plain)) is type(value):
        return plain
    try:
        return json.dumps(value, ensure_ascii=False)
    except TypeError:  # an object without a JSON form
        return plain


def differing(options: Iterable[tuple[str, object]], defaults: Mapping[str, object]) -> str:
    """Return the options that differ from their defaults as ":key=value,...", or "" if there are none."""
    # Compare by identity first, because defaults of a user's function may be arrays.
    chosen = [(key, value) for key, value in options if value is not defaults.get(key)]
    pairs = [f"{key}={spelled(value)}" for key, value in chosen if value != defaults.get(key)]
    return ":" + ",".join(pairs) if pairs else ""


def listed(options: Iterable[tuple[str, object]]) -> str:
    """Format all options with their values for display, as in "masks=1000, p=0.5"."""
    return ", ".join(f"{key}={spelled(value)}" for key, value in options)


def defaults(function: Callable) -> dict[str, object]:
    """Return {option: default} of a function's keyword-only parameters, except for `seeds`."""
    parameters = inspect.signature(function).parameters.values()
    return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY and p.name != "seeds"}


def positional(function: Callable) -> tuple[str, ...]:
    """Return the names of a function's positional parameters."""
    parameters = inspect.signature(function).parameters.values()
    return tuple(p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD)


def resolved(owner: str, function: Callable, options: dict[str, object]) -> tuple[tuple[str, object], ...]:
    """Return all options with their values, including defaults, sorted by name.

    For a float option, 1 becomes 1.0, and for an integer option, 1.0 becomes 1, so that equal values have the same
    identity.

    Args:
        owner: Name of the explainer or metric in messages.
        function: Function with the options as keyword-only parameters.
        options: Chosen options.

    Raises:
        UserError: An option is unknown, or has a value that its annotation does not allow.
    """
    usual, takes = defaults(function), _annotated(function)
    check_names(owner, options, usual)
    for key in options:
        if key in takes:
            takes[key].check(owner, key, options[key])
    chosen = usual | options
    return tuple(sorted((key, takes[key].plain(chosen[key]) if key in takes else chosen[key]) for key in chosen))


def check_names(owner: str, options: Mapping[str, object], names: Iterable[str]) -> None:
    """Raise UserError for the first option that is not in `names`. The message suggests the closest names."""
    names = list(names)
    for key in options:
        if not names:
            raise UserError(f"{owner} has no options; got {key}={options[key]}")
        if key not in names:
            raise unknown("option", key, names, owner=owner)


@dataclass(frozen=True)
class _Annotation:
    """Allowed values of an option.

    Attributes:
        types: Types of allowed values.
        choices: Additional allowed values.
    """

    types: tuple[type, ...]
    choices: tuple[object, ...]

    @classmethod
    def from_hint(cls, hint: Any) -> "_Annotation | None":
        """Parse a type, a Literal, or a union of these. Return None for other annotations, which allow any value."""
        members = get_args(hint) if get_origin(hint) in (UnionType, Union) else (hint,)
        types = tuple(member for member in members if isinstance(member, type))
        literals = [member for member in members if get_origin(member) is Literal]
        if len(types) + len(literals) < len(members):
            return None
        return cls(types, tuple(choice for literal in literals for choice in get_args(literal)))

    def plain(self, value: Any) -> object:
        """Convert a value to the annotated type, such as 1 to 1.0 for a float. NumPy scalars become Python numbers."""
        value = value.item() if getattr(value, "ndim", None) == 0 and hasattr(value, "item") else value  # numpy scalar
        if type(value) is int and float in self.types and int not in self.types:
            return float(value)
        if type(value) is float and int in self.types and float not in self.types and value.is_integer():
            return int(value)
        return value

    def check(self, owner: str, key: str, value: object) -> None:
        """Raise UserError if `value` is not allowed for the option `key` of `owner`."""
        value = self.plain(value)
        if isinstance(value, float) and not isfinite(value):
            raise UserError(f"option {key} of {owner} must be a finite number; got {value}")
        if any(type(value) is type(choice) and value == choice for choice in self.choices):
            return
        if not isinstance(value, self.types) or (isinstance(value, bool) and bool not in self.types):
            if self.choices and isinstance(value, str):
                raise unknown(f"value of option {key} of {owner}", value, str(self).split(" or "))
            digits = isinstance(value, int | float) and not isinstance(value, bool) and str in self.types
            text = f'{key}="{value}"'  # quotes for JSON; the shell needs outer quotes
            fix = f"; to pass it as text, write {text} (in a shell: '{owner}:{text}')" if digits else ""
            raise UserError(f"option {key} of {owner} must be {self}; got {value!r}{fix}")

    def __str__(self) -> str:
        words = {str: "text", NoneType: "None"}
        named = [words.get(kind, kind.__name__) for kind in self.types]
        return " or ".join([*map(str, self.choices), *dict.fromkeys(named)])


def _annotated(function: Callable) -> dict[str, _Annotation]:
    """Return {parameter: its annotation} for the parameters whose annotation restricts their values."""
    annotations = {name: _Annotation.from_hint(hint) for name, hint in get_type_hints(function).items()}
    return {name: annotation for name, annotation in annotations.items() if annotation is not None}


def choices(function: Callable, key: str) -> tuple[object, ...]:
    """Return the allowed values of an option, or () if its values are not a fixed set."""
    annotation = _annotated(function).get(key)
    return () if annotation is None or set(annotation.types) - {NoneType} else annotation.choices


def check(checker: Callable[..., None] | None, options: tuple[tuple[str, object], ...]) -> None:
    """Call the declared `check` function, if there is one, with all options.

    Raise UserError if it raises a ValueError.
    """
    if checker is not None:
        try:
            checker(**dict(options))
        except UserError:
            raise
        except ValueError as error:
            raise UserError(str(error)) from error


def meanings(docstring: str) -> dict[str, str]:
    """Return {parameter: description} from the `Args:` section of a Google-style docstring."""
    _, _, section = inspect.cleandoc(docstring).partition("\nArgs:\n")
    descriptions: dict[str, str] = {}
    name = ""
    for line in section.splitlines():
        if not line.startswith("    "):  # an empty line, or the next section
            break
        if match := re.fullmatch(r"    \*{0,2}(\w+): (.+)", line):
            name, descriptions[match[1]] = match[1], match[2]
        elif name:
            descriptions[name] += " " + line.strip()
    return descriptions


def text(options: tuple[tuple[str, object], ...]) -> str:
    """Serialise resolved options as canonical JSON, for identities and records."""
    return json.dumps(dict(options), sort_keys=True, default=_in_words)


def _in_words(value: object) -> str:
    """Describe an object that JSON cannot represent.

    The text is sorted and has no memory addresses, so it is reproducible.
    """
    text = f"{{{', '.join(sorted(map(repr, value)))}}}" if isinstance(value, set | frozenset) else repr(value)
    return re.sub(r" at 0x[0-9a-fA-F]+", "", text)
