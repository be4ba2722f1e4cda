"""`choose`: select an explainer for a network and a dataset, using only as many images as the decision needs."""
