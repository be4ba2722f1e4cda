"""`doctor`: what to know about a network and a dataset before a long run."""
