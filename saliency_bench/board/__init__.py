"""Board of submissions: templates for maps, the format of submissions, checks, ranks and recomputing."""
