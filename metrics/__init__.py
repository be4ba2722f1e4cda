"""Metrics: a folder per `evaluate` module, with the number itself in `score.py` (saliency_bench/bound_metric.py)."""
