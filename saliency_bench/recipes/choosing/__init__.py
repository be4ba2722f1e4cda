"""`choose`: select an explainer for a network and a dataset, with more images only while the decision needs them."""
