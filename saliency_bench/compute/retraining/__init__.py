"""Retrain networks on pictures that were changed according to maps, for retraining metrics."""
