"""Decide which values of a mask belong to the object: those that the user chooses, or else the only value besides 0.

This module needs only NumPy, because the metric modules for `evaluate` apply the same rules. `masks.py` reads files.
"""

from collections.abc import Iterable
from functools import cache
from typing import Any

import numpy as np

from saliency_bench.errors import UserError

FULL = (1, 255, 65535)  # value of the object in a mask of 1, 8 or 16 bits that covers the whole image
SHOWN = 6  # maximum number of values in a message
NOT_NUMBERS = "values that are not numbers"
NONZERO, ALPHA = "nonzero", "alpha"

# A value, ("from", lowest value), a colour, `NONZERO` or `ALPHA`.
Choice = float | tuple[str, float] | tuple[int, int, int] | str


def words_of(given: Any) -> tuple[str, ...]:
    """Convert mask values (None, a string, a number, or a list of these) to the words that `choices` parses.

    Raises:
        UserError: A word is not valid.
    """
    if isinstance(given, Iterable) and not isinstance(given, str):
        return tuple(word for item in given for word in words_of(item))
    is_number = isinstance(given, int | float | np.number) and not isinstance(given, bool)
    words = "" if given is None else f"{given:.12g}" if is_number else str(given)
    choices(words)
    return tuple(words.split())


@cache
def choices(foreground: str) -> tuple[Choice, ...]:
    """Parse words separated by spaces into choices of mask values, or return () for an empty string.

    A word is a value (`255`), a value and all greater values (`128+`), a colour (`#ff0000`, `255,0,0` or `red`),
    `nonzero` (all pixels except the background), or `alpha` (all pixels that are not transparent). If there are no
    choices, the mask itself must define the object.

    Raises:
        UserError: A word is not valid.
    """
    return tuple(map(_choice, foreground.split()))


def _choice(word: str) -> Choice:
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
        f"foreground={word} is not valid; use a value from 0 to {FULL[-1]}, a value and all greater values such as "
        "128+, a colour such as '#ff0000' or 255,0,0, nonzero, or alpha"
    )


def _colour(word: str) -> tuple[int, int, int]:
    """Return the RGB colour that a word names, or raise ValueError if the word is not a colour."""
    if "," in word:
        red, green, blue = map(int, word.split(","))
    else:
        from PIL import ImageColor

        red, green, blue = ImageColor.getrgb(word)[:3]
    if not all(0 <= part <= 255 for part in (red, green, blue)):
        raise ValueError(word)
    return red, green, blue


def spelled(foreground: str) -> str:
    """Return the canonical form of a string that `choices` parses. Words are sorted, and colours become numbers."""
    return " ".join(sorted({_spelled(choice) for choice in choices(foreground)}))


def _spelled(choice: Choice) -> str:
    if isinstance(choice, str):
        return choice
    if isinstance(choice, float):
        return f"{choice:g}"
    return f"{choice[1]:g}+" if len(choice) == 2 else ",".join(map(str, choice))


def unclear(values: np.ndarray, background: int = 0) -> str:
    """Return the reason why the values of a mask do not separate object and background, or "" if they do.

    The values are clear if the mask contains only the background and one other value, only the background, or only one
    of the values in `FULL`.

    Args:
        values: Values of a mask, with any shape and dtype.
        background: Value of the background.
    """
    if values.dtype == bool or values.size == 0:
        return ""
    low, high = values.min(), values.max()
    if np.isnan(low):
        return NOT_NUMBERS
    if not ((values == low) | (values == high)).all():
        return "more than two values"
    if low < 0:
        return "negative values"
    if low == high:
        return "" if low == background or low in FULL else "a single value that is not the background"
    return "" if background in (low, high) else "two values, neither of them 0"


def in_words(distinct: np.ndarray) -> str:
    """Format sorted, distinct values for a message: all values if there are few, else the range."""
    few = len(distinct) <= SHOWN
    return ", ".join(f"{value:g}" for value in distinct) if few else f"{distinct[0]:g} to {distinct[-1]:g}"
