"""Measure how much of the highest quarter of a map lies in the mask."""
