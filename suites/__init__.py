"""Suites: one YAML file per paper, the tables inside."""
