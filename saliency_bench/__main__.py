"""Entry point of `python -m saliency_bench`, which runs the command `saliency-bench`."""

import sys

from saliency_bench.cli import main

sys.exit(main())
