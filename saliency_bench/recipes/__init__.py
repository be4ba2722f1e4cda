"""Recipes: suites of the papers' tables, and the choice of an explainer. They use runs and add no measures."""
