"""Explainers: one per file, `NAME.py` with a function `NAME` and a `VERSION` (saliency_bench/bound_explainer.py)."""
