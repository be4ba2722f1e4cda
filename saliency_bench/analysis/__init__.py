"""What follows from the results of several runs: comparisons."""
