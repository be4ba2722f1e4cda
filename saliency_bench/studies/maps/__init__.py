"""What studies over the maps of a run have in common: human masks, attention checks, and the rows of results."""
