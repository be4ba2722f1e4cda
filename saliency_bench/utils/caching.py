"""Where this package keeps what it can make again."""

import os
from pathlib import Path


def cache_folder() -> Path:
    """$SALIENCY_BENCH_CACHE, or `~/.cache/saliency-bench`."""
    return Path(os.environ.get("SALIENCY_BENCH_CACHE") or "~/.cache/saliency-bench").expanduser()
