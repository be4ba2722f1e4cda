"""Progress bars: live on a terminal, a line every 30 seconds in a log."""

import sys
from collections.abc import Iterable
from typing import Any

from tqdm import tqdm


def bar(iterable: Iterable | None = None, *, shown: bool = True, **options: Any) -> tqdm:
    """A tqdm bar on standard error; `options` are tqdm's (desc, unit, total ...)."""
    options.setdefault("mininterval", 0.1 if sys.stderr.isatty() else 30)
    return tqdm(iterable, disable=not shown, **options)
