"""Explainers, one per file: `NAME.py` contains a function `NAME` (see saliency_bench/declarations.py)."""
