"""Recipes based on runs: suites for the papers' tables, choosing an explainer, and checks.

Recipes define no metrics of their own.
"""
