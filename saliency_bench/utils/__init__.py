"""Helpers for files, hashes, seeds, images and devices. Every layer may use them; none depends on saliency."""
