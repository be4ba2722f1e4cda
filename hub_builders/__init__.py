"""Datasets: one builder per file (see saliency_bench/building.py)."""
