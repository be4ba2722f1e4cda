"""Networks that are trained anew on pictures which maps have changed, for the metrics that ask for them."""
