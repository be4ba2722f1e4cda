"""Explainers: one per file, `NAME.py` with a function `NAME` and a `VERSION` (see saliency_bench/bound_explainer.py)."""
