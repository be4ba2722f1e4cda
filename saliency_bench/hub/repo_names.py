"""Parse repository names: OWNER/NAME or OWNER/NAME@REVISION.

The form hub:OWNER/NAME is needed only if a local folder has the same name.
"""

import re
from typing import NamedTuple

from saliency_bench.errors import UserError

FORCED = "hub:"
ID = re.compile(r"(?:[\w.-]+/)?[\w.-]+")


class HubName(NamedTuple):
    """A parsed repository name.

    Attributes:
        name: OWNER/NAME, or a path, without `hub:` and `@REVISION`.
        revision: Branch, tag or commit, or None.
        forced: Whether the name starts with `hub:`, which means that it does not refer to a folder.
    """

    name: str
    revision: str | None
    forced: bool


def hub_name(text: str, revision: str | None = None) -> HubName:
    """Parse the name of a repository.

    Args:
        text: Name to parse.
        revision: Revision that was passed separately.

    Raises:
        UserError: `text` and `revision` name different revisions, or there is no revision after the @.
    """
    name, at, written = text.removeprefix(FORCED).partition("@")
    if not could_be_on_the_hub(name):  # a path, which may contain @
        return HubName(text.removeprefix(FORCED), revision, text.startswith(FORCED))
    if at and not written:
        raise UserError(f"'{text}' has no revision after the @; use OWNER/NAME@COMMIT, or leave out the @")
    if at and revision is not None and written != revision:
        raise UserError(f"'{text}' and revision='{revision}' name different revisions; remove one of them")
    return HubName(name, written or revision, text.startswith(FORCED))


def could_be_on_the_hub(text: str) -> bool:
    """Return whether a name has the format of a Hub id and is not a path."""
    return ID.fullmatch(text) is not None and not text.startswith(".")
