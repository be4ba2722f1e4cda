"""Assessment: people rate the maps of an image without their names."""
