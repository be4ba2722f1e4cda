"""Shared by the pages of studies: serving and appearance."""
