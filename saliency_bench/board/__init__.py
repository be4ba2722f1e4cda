"""Submissions: templates, schema, checks, board."""
