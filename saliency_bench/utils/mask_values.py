"""Which values of a mask are the object: 0 and one other value, or those that the user names.

Numpy only, as the modules of `evaluate` read masks by these rules too; `masks.py` reads pictures.
"""

from collections.abc import Iterable
from functools import cache
from typing import Any

import numpy as np

from saliency_bench.errors import UserError

FULL = (1, 255, 65535)  # values of a mask that is the object everywhere: in 1, 8 and 16 bits
SHOWN = 6  # values in a message
NONZERO, ALPHA = "nonzero", "alpha"

# A value, ("from", the lowest value), a colour, `NONZERO` or `ALPHA`.
Choice = float | tuple[str, float] | tuple[int, int, int] | str


def words_of(given: Any) -> tuple[str, ...]:
    """Return what of a mask is the object as words of `choices`: of None, a text, a number, or several of these.

    Raises:
        UserError: One is no such word.
    """
    if isinstance(given, Iterable) and not isinstance(given, str):
        return tuple(word for item in given for word in words_of(item))
    is_number = isinstance(given, int | float | np.number) and not isinstance(given, bool)
    words = "" if given is None else f"{given:.12g}" if is_number else str(given)
    choices(words)
    return tuple(words.split())


@cache
def choices(foreground: str) -> tuple[Choice, ...]:
    """Return what of a mask is the object, from words with spaces between them; () where the mask itself tells.

    A word is a value (`255`), a value with all above it (`128+`), a colour (`#ff0000`, `255,0,0` or `red`), `nonzero`
    (all but the background), or `alpha` (what is not transparent).

    Raises:
        UserError: A word is none of them.
    """
    return tuple(map(_choice, foreground.split()))


def _choice(word: str) -> Choice:
    """Return what a word of `choices` means."""
    if word in (NONZERO, ALPHA):
        return word
    try:
        if not word[0].isdecimal() or "," in word:
            return _colour(word)
        if (value := float(word.removesuffix("+"))) <= FULL[-1]:
            return ("from", value) if word.endswith("+") else value
    except ValueError:
        pass
    raise UserError(
        f"foreground={word} is neither a value from 0 to {FULL[-1]}, nor one with all above it such as 128+, nor a "
        "colour such as '#ff0000' or 255,0,0, nor nonzero, nor alpha"
    )


def _colour(word: str) -> tuple[int, int, int]:
    """Return the colour that a word names; raise ValueError where it is none."""
    if "," in word:
        red, green, blue = map(int, word.split(","))
    else:
        from PIL import ImageColor

        red, green, blue = ImageColor.getrgb(word)[:3]
    if not all(0 <= part <= 255 for part in (red, green, blue)):
        raise ValueError(word)
    return red, green, blue


def spelled(foreground: str) -> str:
    """Return the one spelling of words that mean the same: sorted, colours by their numbers."""
    return " ".join(sorted({_spelled(choice) for choice in choices(foreground)}))


def _spelled(choice: Choice) -> str:
    """Return the word for a choice."""
    if isinstance(choice, str):
        return choice
    if isinstance(choice, float):
        return f"{choice:g}"
    return f"{choice[1]:g}+" if len(choice) == 2 else ",".join(map(str, choice))


def unclear(values: np.ndarray, background: int = 0) -> str:
    """Return why values do not tell the object from the background; "" where they do.

    They do where they are the background's and another one, the background's alone, or one of `FULL` alone.

    Args:
        values: of a mask, of any shape and kind of number.
        background: the value of the background.
    """
    if values.dtype == bool or values.size == 0:
        return ""
    low, high = values.min(), values.max()
    if not ((values == low) | (values == high)).all():  # NaN equals nothing
        return "more than two values"
    if low < 0:
        return "negative values"
    if low == high:
        return "" if low == background or low in FULL else "one value, which is not 0"
    return "" if background in (low, high) else "two values, none of them 0"


def in_words(distinct: np.ndarray) -> str:
    """Return different, sorted values in words: each of a few, else their range."""
    few = len(distinct) <= SHOWN
    return ", ".join(f"{value:g}" for value in distinct) if few else f"{distinct[0]:g} to {distinct[-1]:g}"
