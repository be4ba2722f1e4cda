"""Score maps by metrics: perturbation curves, inputs that metrics declare, and base classes for `evaluate` modules."""
