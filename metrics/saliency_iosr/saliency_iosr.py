"""`evaluate` module: share of the salient area that lies in the mask. The metric itself is in score.py."""

import evaluate

from saliency_bench.scoring.evaluate_shell import MapShell

from .score import saliency_iosr


class SaliencyIosr(MapShell, evaluate.Metric):
    """Mean over samples of the share of the salient area, {map > threshold * max map}, that lies in the mask.

    Args:
        predictions: saliency maps (B, H, W), higher = more salient. references: masks (B, H, W), 0 and 1.
        threshold: number in [0, 1) (default 0.5), the share of the map's maximum that salient pixels exceed.
        per_sample: add the list "scores", NaN where a mask is empty (default False).

    Returns:
        {"saliency_iosr": float in [0, 1], higher is better}.
    """

    CITATION = """@article{li2020quantitative,
  title={Quantitative Evaluations on Saliency Methods: An Experimental Study},
  author={Li, Xiao-Hui and Shi, Yuhan and Li, Haoyang and Bai, Wei and Song, Yuanwei and Cao, Caleb Chen and Chen, Lei},
  journal={arXiv preprint arXiv:2012.15616},
  year={2020}
}"""
    URL = "https://arxiv.org/abs/2012.15616"

    def scores(self, maps, references, *, threshold: float = 0.5):
        return saliency_iosr(maps, references, threshold=threshold)
