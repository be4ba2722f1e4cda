"""Client and uploads for the Hub, independent of datasets, models and results."""
