"""Reports: the page of a run, comparisons and plots of analyses, made from files."""
