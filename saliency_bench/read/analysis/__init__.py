"""Analyse the results of runs: comparisons, pairs of explainers, requirements, and analyses of scores."""
