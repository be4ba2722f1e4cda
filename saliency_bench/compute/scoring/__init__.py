"""Score maps with metrics: perturbation curves, inputs that metrics declare, base classes for `evaluate` modules."""
