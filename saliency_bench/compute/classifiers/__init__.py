"""Turn checkpoints into classifiers: loading, the prepared frame, layers, hooks, attention, fast passes."""
