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
    """A text, or what an error says (its class where it says nothing), as one line of at most so many characters.

    Names in it may come from strangers: what is not printable (escapes that move a terminal's cursor, marks that turn
    the direction of writing) is spelled out.
    """
    line = " ".join(str(text).split()) or (type(text).__name__ if isinstance(text, BaseException) else "")
    line = "".join(sign if sign.isprintable() else ascii(sign)[1:-1] for sign in line)
    return line if len(line) <= most else line[: most - 3] + "..."


def without_controls(text: str) -> str:
    """A text of any length with what moves a cursor or turns the direction of writing spelled out; lines stay lines."""
    return CONTROLS.sub(lambda sign: ascii(sign[0])[1:-1], text)


class EndedError(Exception):
    """A function of an explainer or metric tried to end the program; its cause says how."""


@contextmanager
def no_exit() -> Iterator[None]:
    """Inside, what would end the program without being an error, such as sys.exit(0), is one. Ctrl-C stays Ctrl-C."""
    try:
        yield
    except (Exception, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise EndedError(described(error)) from error


def described(error: BaseException) -> str:
    """The class of an error and what it says, on one line."""
    error = error.__cause__ if isinstance(error, EndedError) and error.__cause__ else error
    name = type(error).__name__
    text = one_line(error, 200)
    return name if text in ("", name) else f"{name}: {text}"


def unknown(
    kind: str,
    name: str,
    known: Iterable[str],
    aliases: Mapping[str, Iterable[str]] = MappingProxyType({}),
    *,
    of: str = "",
) -> UserError:
    """An error for an unknown name, with the nearest known ones. aliases: {known name: what else it is called}.

    of: what it would belong to.
    """
    known = sorted(known)
    near = _nearest(str(name), known, aliases)
    some = ", ".join(known[:SHOWN]) + (f" and {len(known) - SHOWN} more" if len(known) > SHOWN else "")
    fix = f"did you mean {' or '.join(near)}?" if near else f"known: {some}"
    return UserError(f"unknown {kind} '{name}'{f' of {of}' * bool(of)}; {fix}")


def _nearest(name: str, known: list[str], aliases: Mapping[str, Iterable[str]]) -> list[str]:
    """The item that is spelled or called so, or else up to three that are spelled alike."""
    common = known[0].partition("_")[0] + "_" if known else ""  # such as saliency_, which people leave out
    common = common if len(known) > 1 and all(item.startswith(common) for item in known) else ""
    spelled = {_letters(alias): item for item in known for alias in aliases.get(item, ())}
    spelled |= {_letters(item.removeprefix(common)): item for item in known}
    wanted = _letters(name).removeprefix(_letters(common))
    if wanted in spelled:
        return [spelled[wanted]]
    matches = get_close_matches(wanted, spelled, n=3, cutoff=0.65) if wanted else []
    return list(dict.fromkeys(spelled[match] for match in matches))


def _letters(text: str) -> str:
    """Without case and punctuation, which people set as they like."""
    return "".join(sign for sign in text.casefold().replace("+", "plus") if sign.isalnum())
