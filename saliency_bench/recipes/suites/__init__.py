"""Suites: all runs of a paper's tables, planned, completed, and laid out like the tables."""
