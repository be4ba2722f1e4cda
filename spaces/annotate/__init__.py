"""Space for drawing and reviewing masks."""
