"""Hub client and uploads, independent of datasets, models and results."""
