"""Maps of explainers: composed, for further images and targets, for one picture."""
