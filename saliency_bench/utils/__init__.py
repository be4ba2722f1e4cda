"""Files, hashes, seeds, pictures, devices: helpers that every layer may use and that do not depend on saliency."""
