"""Check the metrics on networks with a known correct map.

Each metric should score this map higher than damaged maps.
"""
