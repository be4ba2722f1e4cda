"""Recipes that build on runs: suites for the papers' tables, choosing an explainer, and checks. They add no metrics."""
