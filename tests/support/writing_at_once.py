"""Command line in which a run writes each result immediately, for tests that kill it between two files."""

import sys

from saliency_bench.cli import main
from saliency_bench.compute import writing

writing.SECONDS = 0

if __name__ == "__main__":
    sys.exit(main())
