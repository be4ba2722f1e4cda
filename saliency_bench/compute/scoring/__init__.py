"""Score maps by metrics: perturbation curves, inputs that metrics declare, and shells for `evaluate`."""
