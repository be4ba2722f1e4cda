"""Score maps with metrics: perturbation curves, inputs of metrics, and base classes for `evaluate` modules."""
