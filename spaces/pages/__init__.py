"""Shared code of the pages of studies: server, scripts and styles."""
