"""Suites: all runs of a paper's tables, planned, run where something is missing, and laid out as the tables."""
