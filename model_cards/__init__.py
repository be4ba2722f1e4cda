"""Templates of the cards of published datasets, models and results."""
