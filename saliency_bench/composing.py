"""Public alias of `saliency_bench.compute.maps.composing`."""

from saliency_bench.compute.maps.composing import absolute, blurred, over_layers, positive, smoothed

__all__ = ["absolute", "blurred", "over_layers", "positive", "smoothed"]
