"""Suites: plan and compute all runs that a paper's tables need, and write the tables."""
