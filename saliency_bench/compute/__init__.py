"""Compute a run batch by batch (load, predict, explain, score, write the records), and train networks."""
