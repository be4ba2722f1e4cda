"""Metrics, with one folder per `evaluate` module and the function in `score.py` (saliency_bench/declarations.py)."""
