"""Repository names given by users: OWNER/NAME, OWNER/NAME@REVISION, and hub:OWNER/NAME if a folder has that name."""

import re
from typing import NamedTuple

from saliency_bench.errors import UserError

FORCED = "hub:"
ID = re.compile(r"(?:[\w.-]+/)?[\w.-]+")


class HubName(NamedTuple):
    """A name without `hub:` and `@REVISION`.

    Attributes:
        name: OWNER/NAME, or a path.
        revision: branch, tag or commit.
        forced: whether the name starts with `hub:`, so it does not mean a folder.
    """

    name: str
    revision: str | None
    forced: bool


def hub_name(text: str, revision: str | None = None) -> HubName:
    """Parse the name of a repository.

    Args:
        text: the name.
        revision: revision given separately.

    Raises:
        UserError: There are two revisions, or none after the @.
    """
    name, at, written = text.removeprefix(FORCED).partition("@")
    if not could_be_on_the_hub(name):  # a path, which may contain @
        return HubName(text.removeprefix(FORCED), revision, text.startswith(FORCED))
    if at and not written:
        raise UserError(f"'{text}' names no revision after the @; write OWNER/NAME@COMMIT, or leave out the @")
    if at and revision is not None and written != revision:
        raise UserError(f"'{text}' and revision='{revision}' name two revisions; leave one out")
    return HubName(name, written or revision, text.startswith(FORCED))


def could_be_on_the_hub(text: str) -> bool:
    """Return whether a name has the form of an id of the Hub, rather than of a path."""
    return ID.fullmatch(text) is not None and not text.startswith(".")
