"""`doctor`: check a network and a dataset before a long run."""
