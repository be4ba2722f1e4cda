"""`choose`: select an explainer for a network and a dataset. It uses only as many images as the decision needs."""
