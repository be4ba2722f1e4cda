"""Compose explainers, explain single pictures, provide the additional maps that metrics request, and read map files."""
