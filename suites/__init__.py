"""Suites: one YAML file per paper, which defines the paper's tables."""
