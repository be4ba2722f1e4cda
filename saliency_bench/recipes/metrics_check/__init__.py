"""Check the metrics on networks whose correct map is known.

Each metric should score this map higher than damaged maps.
"""
