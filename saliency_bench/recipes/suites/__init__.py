"""Suites: plan and complete all runs behind a paper's tables, and write the tables."""
