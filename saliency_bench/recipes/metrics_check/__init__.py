"""Check of the metrics on networks with a known correct map: does each metric rank it above damaged maps?"""
