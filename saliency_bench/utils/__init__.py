"""Files, hashes, seeds, pictures, devices: what any layer may use and what knows nothing of saliency."""
