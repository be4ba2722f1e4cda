"""Metrics, one folder each."""
