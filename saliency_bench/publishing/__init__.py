"""Publish datasets, metrics, models and apps on the Hub, and install metrics in the cache of `evaluate`."""
