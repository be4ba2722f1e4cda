"""The Hub's client and uploads: talks to the Hub, knows nothing of datasets, models or results."""
