"""Metrics, a folder each."""
