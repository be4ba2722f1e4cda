"""What the pages of studies have in common: how they are served, and how they look."""
