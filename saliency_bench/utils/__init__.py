"""Helpers for files, hashes, seeds, images and devices, which every layer may use."""
