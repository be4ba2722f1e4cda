"""Suites, a YAML file each."""
