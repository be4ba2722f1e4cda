"""From a metric's declared needs to its scores: perturbation curves, inputs, shells for `evaluate`."""
