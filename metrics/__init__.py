"""Metrics, each in its own folder.

A folder contains the `evaluate` module and, in `score.py`, the function of the metric. The function is declared as
described in saliency_bench/declarations.py.
"""
