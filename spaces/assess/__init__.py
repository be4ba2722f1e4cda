"""Assessment: people rate the maps of an image without knowing whose they are."""
