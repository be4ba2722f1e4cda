"""Explainers: one per file, `NAME.py` with a function `NAME` (see saliency_bench/declarations.py)."""
