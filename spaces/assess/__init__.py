"""Space for assessments: people rate the maps of an image by anonymous explainers."""
