"""Load everything in a spec: the dataset, the networks and their classes, the explainers and the metrics."""
