"""Boards: templates for maps, the submission format, and the checking, ranking and recomputation of submissions."""
