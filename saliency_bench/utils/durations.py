"""Parse durations such as 90s, 30m and 2h."""

import re

from saliency_bench.errors import UserError

UNITS = {"s": 1, "m": 60, "h": 3600}


def seconds_of(within: str | float | None) -> float | None:
    """Convert a duration to seconds ("30m" becomes 1800). None and "none" become None.

    A number without a unit is in seconds.

    Raises:
        UserError: The value is not a duration above 0.
    """
    if within is None or within == "none":
        return None
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smh]?)", str(within).strip())
    if match is None or float(match[1]) <= 0:
        raise UserError(f"within (--within) must be a time such as 90s, 30m or 2h; got '{within}'")
    return float(match[1]) * UNITS[match[2] or "s"]
