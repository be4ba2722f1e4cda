"""Retrain networks for retraining metrics, on pictures that were changed according to maps."""
