"""Metrics: a folder per `evaluate` module; the function is in `score.py` (see saliency_bench/declarations.py)."""
