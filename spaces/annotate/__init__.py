"""Space in which people draw and review masks."""
