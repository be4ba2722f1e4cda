"""Load everything that a spec names: the dataset, the networks and their classes, the explainers and the metrics."""
