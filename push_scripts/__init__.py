"""Commands: one per file (see saliency_bench/cli.py)."""
