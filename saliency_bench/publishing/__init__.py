"""Datasets, metrics and models on the Hub and in the cache of `evaluate`."""
