"""Explainers, one module each."""
