"""Progress bars, all alike: on a terminal they move, in a log they add a line every half minute."""

import sys

from tqdm import tqdm


def bar(iterable=None, *, shown: bool = True, **options) -> tqdm:
    """A tqdm bar on standard error; `options` are tqdm's (desc, unit, total ...)."""
    options.setdefault("mininterval", 0.1 if sys.stderr.isatty() else 30)
    return tqdm(iterable, disable=not shown, **options)
