"""Boards of submissions: templates for maps, and the format, checks, ranks and recomputation of submissions."""
