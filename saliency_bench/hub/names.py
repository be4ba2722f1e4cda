"""Repositories as users name them: OWNER/NAME, OWNER/NAME@REVISION, and hub:OWNER/NAME where a folder is called so."""

import re
from typing import NamedTuple

from saliency_bench.errors import UserError

FORCED = "hub:"
ID = re.compile(r"(?:[\w.-]+/)?[\w.-]+")


class HubName(NamedTuple):
    """A name without `hub:` and `@REVISION`. forced: it was written with `hub:`, so that no folder is meant."""

    name: str
    revision: str | None
    forced: bool


def hub_name(text: str, revision: str | None = None) -> HubName:
    """What a text names. revision: given beside it. Raises: UserError for two revisions, or none after the @."""
    name, at, own = text.removeprefix(FORCED).partition("@")
    if not could_be_on_the_hub(name):  # a path, in which an @ is a letter
        return HubName(text.removeprefix(FORCED), revision, text.startswith(FORCED))
    if at and not own:
        raise UserError(f"'{text}' names no revision after the @; write OWNER/NAME@COMMIT, or leave out the @")
    if at and revision is not None and own != revision:
        raise UserError(f"'{text}' and revision='{revision}' name two revisions; leave one out")
    return HubName(name, own or revision, text.startswith(FORCED))


def could_be_on_the_hub(text: str) -> bool:
    """Whether a name has the form of an id of the Hub, rather than of a path."""
    return ID.fullmatch(text) is not None and not text.startswith(".")
