"""Recipes: suites of the papers' tables, and the choice of an explainer. They run and read, and add no numbers."""
