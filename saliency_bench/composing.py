"""Public name of `saliency_bench.explaining.composing`."""

from saliency_bench.explaining.composing import absolute, blurred, over_layers, positive, smoothed

__all__ = ["absolute", "blurred", "over_layers", "positive", "smoothed"]
