"""Statistics of scores: clusters, intervals, paired tests, ranks, reliability."""
