"""Provide maps from composed explainers, for further images and targets, for one picture, and from files."""
