"""Explainers: one per file, `NAME.py` with a function `NAME`, declared as in `saliency_bench/declarations.py`."""
