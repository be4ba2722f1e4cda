"""Space for assessments: people rate maps of anonymous explainers for the same image."""
