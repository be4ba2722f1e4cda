"""Loops that kill and restart commands and compare the results with an undisturbed run; see benchmarks/kills.py."""
