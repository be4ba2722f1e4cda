"""Measure how much of the highest quarter of a map is inside the mask."""
