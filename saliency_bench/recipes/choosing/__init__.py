"""`choose`: which explainer for a network and a dataset, by runs that are widened where it decides."""
