"""Space for assessment studies: people rate maps of anonymous explainers for the same image."""
