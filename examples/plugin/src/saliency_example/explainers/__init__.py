"""Explainers, a module each."""
