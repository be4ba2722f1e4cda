"""Load the objects of a spec: rows of the dataset, classes shared with the model, explainers, metrics."""
