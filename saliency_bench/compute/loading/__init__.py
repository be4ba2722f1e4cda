"""Turn a spec into what a run works on: rows of the dataset, classes shared with the model, explainers."""
