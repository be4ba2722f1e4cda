"""Boards: templates for maps, and the format, checks, ranking and recomputation of submissions."""
