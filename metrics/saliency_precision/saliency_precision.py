"""`evaluate` module: pixel-wise precision of saliency maps against masks. The metric itself is in score.py."""

from typing import Literal

import evaluate

from saliency_bench.scoring.evaluate_shell import MapShell

from .score import saliency_precision, saliency_precision_sweep


class SaliencyPrecision(MapShell, evaluate.Metric):
    """Mean over samples of the share of the salient pixels, {normalised map > threshold}, that lie in the mask.

    Args:
        predictions: saliency maps (B, H, W), higher = more salient. references: masks (B, H, W), 0 and 1.
        threshold: number in [0, 1] (default 0.5), "mask_area" (as many top pixels as the mask has), or a list of these.
        normalise: min-max each map to [0, 1] first (default True).
        per_sample: add the list "scores", NaN where a mask is empty (default False).

    Returns:
        {"saliency_precision": float in [0, 1], higher is better}; a list if the thresholds are a list.
    """

    CITATION = """@inproceedings{achanta2009frequency,
  title={Frequency-tuned salient region detection},
  author={Achanta, Radhakrishna and Hemami, Sheila and Estrada, Francisco and Susstrunk, Sabine},
  booktitle={IEEE Conference on Computer Vision and Pattern Recognition},
  pages={1597--1604},
  year={2009}
}"""
    URL = "https://doi.org/10.1109/CVPR.2009.5206596"

    def scores(
        self,
        maps,
        references,
        *,
        threshold: float | Literal["mask_area"] | list | tuple = 0.5,
        normalise: bool = True,
    ):
        if isinstance(threshold, list | tuple):
            return saliency_precision_sweep(maps, references, threshold, normalise=normalise)
        return saliency_precision(maps, references, threshold=threshold, normalise=normalise)
