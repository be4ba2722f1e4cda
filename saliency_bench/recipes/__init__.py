"""Recipes based on runs: suites for the papers' tables, choosing an explainer, and checks.

They define no metrics of their own.
"""
