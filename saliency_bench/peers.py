"""Public name of `saliency_bench.map_sources.peers`."""

from saliency_bench.map_sources.peers import captum, grad_cam, quantus, zennit

__all__ = ["captum", "grad_cam", "quantus", "zennit"]
