"""`python -m saliency_bench` is the command `saliency-bench`."""

import sys

from saliency_bench.cli import main

sys.exit(main())
