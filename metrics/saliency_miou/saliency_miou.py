"""`evaluate` module: mean intersection over union of saliency maps and masks. The metric itself is in score.py."""

from typing import Literal

import evaluate

from saliency_bench.scoring.evaluate_shell import MapShell

from .score import saliency_miou, saliency_miou_sweep


class SaliencyMiou(MapShell, evaluate.Metric):
    """Mean over samples of the intersection over union of {normalised saliency map > threshold} and a mask.

    Args:
        predictions: saliency maps (B, H, W), higher = more salient. references: masks (B, H, W), 0 and 1.
        threshold: number in [0, 1] (default 0.5), "mask_area" (as many top pixels as the mask has), or a list of these.
        normalise: min-max each map to [0, 1] first (default True).
        per_sample: add the list "scores", NaN where a mask is empty (default False).

    Returns:
        {"saliency_miou": float in [0, 1], higher is better}; a list in the order of the thresholds if these are a list.
    """

    CITATION = """@article{zhang2023saliency,
  title={Saliency-Bench: A Comprehensive Benchmark for Evaluating Visual Explanations},
  author={Zhang, Yifei and Song, James and Gu, Siyi and Jiang, Tianxu and Pan, Bo and Bai, Guangji and Zhao, Liang},
  journal={arXiv preprint arXiv:2310.08537},
  year={2023}
}"""
    URL = "https://arxiv.org/abs/2310.08537"

    def scores(
        self,
        maps,
        references,
        *,
        threshold: float | Literal["mask_area"] | list | tuple = 0.5,
        normalise: bool = True,
    ):
        if isinstance(threshold, list | tuple):
            return saliency_miou_sweep(maps, references, threshold, normalise=normalise)
        return saliency_miou(maps, references, threshold=threshold, normalise=normalise)
