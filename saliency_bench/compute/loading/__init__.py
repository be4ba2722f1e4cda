"""From a spec to what a run works on: the dataset's rows, the classes they share with the model, the explainers."""
