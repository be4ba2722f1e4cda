"""A run: predicts, explains and scores chunk by chunk; training; precomputed maps."""
