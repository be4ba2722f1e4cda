"""Retrain networks on pictures that are changed by maps, for retraining metrics."""
