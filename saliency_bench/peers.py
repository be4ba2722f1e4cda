"""Public alias of `saliency_bench.compute.maps.peers`."""

from saliency_bench.compute.maps.peers import captum, grad_cam, quantus, zennit

__all__ = ["captum", "grad_cam", "quantus", "zennit"]
