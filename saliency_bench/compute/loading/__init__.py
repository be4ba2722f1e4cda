"""Load what a spec names: the rows of a dataset, the matching classes of the model, explainers and metrics."""
