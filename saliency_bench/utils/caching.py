"""The cache folder of this package."""

import os
from pathlib import Path


def cache_folder() -> Path:
    """$SALIENCY_BENCH_CACHE, or `~/.cache/saliency-bench`."""
    return Path(os.environ.get("SALIENCY_BENCH_CACHE") or "~/.cache/saliency-bench").expanduser()
