"""Provide maps from composed explainers, for metrics that request more maps, for one picture, and from files."""
