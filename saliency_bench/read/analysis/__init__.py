"""Analyses of the results of runs: comparisons, pairs of explainers, requirements, correlations and rankings."""
