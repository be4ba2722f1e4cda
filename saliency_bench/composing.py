"""Public name of `saliency_bench.map_sources.composing`."""

from saliency_bench.map_sources.composing import absolute, blurred, over_layers, positive, smoothed

__all__ = ["absolute", "blurred", "over_layers", "positive", "smoothed"]
