"""Code that the pages of all studies share: server, scripts and styles."""
