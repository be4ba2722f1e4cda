"""Datasets: one builder per file (see saliency_bench/data/builders.py)."""
