"""`choose`: select an explainer for a network and a dataset, by runs that grow where the decision needs it."""
