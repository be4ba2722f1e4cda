"""Check of the metrics on networks with a known correct map: does each metric rank this map above damaged maps?"""
