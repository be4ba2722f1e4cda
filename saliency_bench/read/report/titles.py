"""Display names of metrics: what its author declares as `title`, with the options and the version that a run adds."""

import re
from functools import lru_cache

from saliency_bench import registry


@lru_cache(1000)  # reading the file of a metric takes a millisecond, and a board names thousands
def metric_title(text: str) -> str:
    """Return how a page names a metric; a metric that declares no title keeps its identifier.

    Args:
        text: as tables name it: "saliency_miou", "saliency_miou:threshold=0.3" or "saliency_miou (version 2)".
    """
    name, rest = re.fullmatch(r"([\w.-]*)(.*)", text, re.DOTALL).groups()  # type: ignore[union-attr]
    title = registry.declared("metrics", name, "title", "") if name in registry.names("metrics") else ""
    return f"{title}, {rest[1:]}" if title and rest.startswith(":") else title + rest if title else text


def with_titles(text: str) -> str:
    """Return a sentence in which metrics go by their display names; their options stay as they are."""
    return re.sub(r"\bsaliency_\w+", lambda match: metric_title(match[0]), text)
