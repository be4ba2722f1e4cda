"""Suites, one YAML file each."""
