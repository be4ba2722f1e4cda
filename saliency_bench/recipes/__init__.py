"""Recipes that build on runs and add no metrics: suites for the papers' tables, choosing an explainer, and checks."""
