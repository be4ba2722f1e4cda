"""Check metrics where the right map is known: does each rank the right map above damaged ones?"""
