"""From a checkpoint to logits: loading, the prepared frame, layers, hooks, attention, fast passes."""
