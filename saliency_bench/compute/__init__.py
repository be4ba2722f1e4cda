"""Compute a run: load, predict, explain and score batch by batch, and write the records; train networks."""
