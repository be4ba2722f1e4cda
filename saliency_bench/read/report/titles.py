"""Display names of metrics: the declared `title`, followed by the options and the version that a run adds."""

import re
from functools import lru_cache

from saliency_bench import registry


@lru_cache(1000)  # reading the file of a metric takes a millisecond, and a board displays thousands of names
def metric_title(text: str) -> str:
    """Return the name of a metric on a page. A metric without a declared title keeps its identifier.

    Args:
        text: Name in tables, such as "saliency_miou", "saliency_miou:threshold=0.3" or "saliency_miou (version 2)".
    """
    name, rest = re.fullmatch(r"([\w.-]*)(.*)", text, re.DOTALL).groups()  # type: ignore[union-attr]
    title = registry.declared("metrics", name, "title", "") if name in registry.names("metrics") else ""
    return f"{title}, {rest[1:]}" if title and rest.startswith(":") else title + rest if title else text


def with_titles(text: str) -> str:
    """Replace the identifiers of metrics in a sentence with display names. Options stay unchanged."""
    return re.sub(r"\bsaliency_\w+", lambda match: metric_title(match[0]), text)
