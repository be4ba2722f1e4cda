"""Errors the user can fix, each as one line."""

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from types import MappingProxyType

SHOWN = 20  # names in a message
LONGEST = 2000  # characters of a message
CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")


class UserError(ValueError):
    """One line: what is wrong, and the fix; the command line prints it and exits with code 2."""

    def __init__(self, text: object):
        super().__init__(one_line(text, LONGEST))


def one_line(text: object, most: int = 300) -> str:
    """Return a text, or the message of an error (its class if it has none), as one line.

    Names in it may come from strangers: what is not printable (escapes that move a terminal's cursor, marks that turn
    the direction of writing) is spelled out.

    Args:
        text: the text or error.
        most: the longest line in characters; a longer one ends in "...".
    """
    line = " ".join(str(text).split()) or (type(text).__name__ if isinstance(text, BaseException) else "")
    line = "".join(sign if sign.isprintable() else ascii(sign)[1:-1] for sign in line)
    return line if len(line) <= most else line[: most - 3] + "..."


def without_controls(text: str) -> str:
    """Return a text with what moves a cursor or turns the direction of writing spelled out; lines stay lines."""
    return CONTROLS.sub(lambda sign: ascii(sign[0])[1:-1], text)


class EndedError(Exception):
    """A function of an explainer or metric tried to end the program; its cause says how."""


@contextmanager
def no_exit() -> Iterator[None]:
    """Raise `EndedError` for what would end the program without being an error, such as sys.exit(0).

    Ctrl-C stays Ctrl-C.
    """
    try:
        yield
    except (Exception, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise EndedError(described(error)) from error


def described(error: BaseException) -> str:
    """Return the class of an error and its message, on one line; of an error of syntax also where it is."""
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
    """Return the error for an unknown name, which suggests the nearest known ones.

    Args:
        kind: what the name is of, such as "option".
        name: the unknown name.
        names: all known ones.
        aliases: {known name: its further names}.
        owner: what has these names, such as the explainer whose option is meant.
    """
    names = sorted(set(names))
    near = _nearest(str(name), names, aliases)
    listed = ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")
    fix = f"did you mean {' or '.join(near)}?" if near else f"known: {listed}"
    return UserError(f"unknown {kind} '{name}'{f' of {owner}' * bool(owner)}; {fix}")


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Return "; did you mean NAME?", or "" if no name is near."""
    near = _nearest(name, sorted(set(names)), {})
    return f"; did you mean {' or '.join(near)}?" if near else ""


def _nearest(name: str, names: list[str], aliases: Mapping[str, Iterable[str]]) -> list[str]:
    """Return the item that `name` means but for case, punctuation or an alias, else up to three that look like it."""
    common = names[0].partition("_")[0] + "_" if names else ""  # such as saliency_, which people leave out
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
