"""Commands of the `saliency-bench` program, one per file (see saliency_bench/cli.py)."""
