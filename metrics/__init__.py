"""Metrics: a folder per `evaluate` module, the function in `score.py`, declared (saliency_bench/declarations.py)."""
