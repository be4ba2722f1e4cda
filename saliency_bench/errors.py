"""Errors that the user can fix, with one-line messages."""

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from types import MappingProxyType

SHOWN = 20  # maximum number of names in a message
LONGEST = 2000  # maximum number of characters in a message
CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")


class UserError(ValueError):
    """Error with a one-line message that states the problem and the fix.

    The command line prints it and exits with code 2.
    """

    def __init__(self, text: object):
        super().__init__(one_line(text, LONGEST))


def one_line(text: object, most: int = 300) -> str:
    """Return text, or an error's message, as one line. If the error has no message, return its class name.

    The text may contain untrusted names, so unprintable characters are escaped. Such characters could move a terminal's
    cursor or reverse the writing direction.

    Args:
        text: Text or error.
        most: Maximum number of characters. A longer line is cut and ends in "...".
    """
    line = " ".join(str(text).split()) or (type(text).__name__ if isinstance(text, BaseException) else "")
    line = "".join(sign if sign.isprintable() else ascii(sign)[1:-1] for sign in line)
    return line if len(line) <= most else line[: most - 3] + "..."


def without_controls(text: str) -> str:
    """Escape characters that could move a cursor or reverse the writing direction. Line breaks are kept."""
    return CONTROLS.sub(lambda sign: ascii(sign[0])[1:-1], text)


class EndedError(Exception):
    """Error that is raised if an explainer's or metric's function tries to end the program.

    `__cause__` is the exception that the function raised.
    """


@contextmanager
def no_exit() -> Iterator[None]:
    """Inside this context, raise `EndedError` for calls that would end the program, such as sys.exit(0).

    Ctrl-C is not affected.
    """
    try:
        yield
    except (Exception, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise EndedError(described(error)) from error


def described(error: BaseException) -> str:
    """Return the class and the message of an error on one line. For a syntax error, include its position."""
    error = error.__cause__ if isinstance(error, EndedError) and error.__cause__ else error
    name = type(error).__name__
    if isinstance(error, SyntaxError) and error.filename and error.lineno:
        return f"{name} in {one_line(error.filename)}, line {error.lineno}: {one_line(error.msg, 200)}"
    text = one_line(error, 200)
    return name if text in ("", name) else f"{name}: {text}"


def unknown(
    kind: str,
    name: str,
    names: Iterable[str],
    aliases: Mapping[str, Iterable[str]] = MappingProxyType({}),
    *,
    owner: str = "",
) -> UserError:
    """Return the error for an unknown name. It suggests the closest known names.

    Args:
        kind: Type of the name, such as "option".
        name: The unknown name.
        names: All known names.
        aliases: {known name: alternative names}.
        owner: What the names belong to, such as the explainer that has these options.
    """
    names = sorted(set(names))
    near = _nearest(str(name), names, aliases)
    listed = ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")
    fix = f"did you mean {' or '.join(near)}?" if near else f"known: {listed}"
    return UserError(f"unknown {kind} '{name}'{f' of {owner}' * bool(owner)}; {fix}")


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Return "; did you mean NAME?", or "" if no name is similar."""
    near = _nearest(name, sorted(set(names)), {})
    return f"; did you mean {' or '.join(near)}?" if near else ""


def _nearest(name: str, names: list[str], aliases: Mapping[str, Iterable[str]]) -> list[str]:
    """Return up to three similar names.

    If a name (or its alias) differs only in case and punctuation, return only this name.
    """
    common = names[0].partition("_")[0] + "_" if names else ""  # a prefix that users may omit, such as saliency_
    common = common if len(names) > 1 and all(item.startswith(common) for item in names) else ""
    spelled = {_letters(alias): item for item in names for alias in aliases.get(item, ())}
    spelled |= {_letters(item.removeprefix(common)): item for item in names}
    wanted = _letters(name).removeprefix(_letters(common))
    if wanted in spelled:
        return [spelled[wanted]]
    matches = get_close_matches(wanted, spelled, n=3, cutoff=0.65) if wanted else []
    return list(dict.fromkeys(spelled[match] for match in matches))


def _letters(text: str) -> str:
    """Normalise a name for matching: casefold and drop punctuation."""
    return "".join(sign for sign in text.casefold().replace("+", "plus") if sign.isalnum())
