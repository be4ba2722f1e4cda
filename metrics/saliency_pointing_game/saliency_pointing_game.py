"""`evaluate` module: pointing game of saliency maps and masks. The metric itself is in score.py."""

from typing import Literal

import evaluate

from saliency_bench.scoring.evaluate_shell import MapShell

from .score import saliency_pointing_game


class SaliencyPointingGame(MapShell, evaluate.Metric):
    """Share of samples whose saliency map has its maximum inside the mask.

    Args:
        predictions: saliency maps (B, H, W), higher = more salient. references: masks (B, H, W), 0 and 1.
        ties: "share" (default): tied maxima count by the share of them inside; "any": one inside is enough.
        tolerance: pixels (default 0); a maximum this near to the mask is a hit.
        per_sample: add the list "scores", NaN where a mask is empty (default False).

    Returns:
        {"saliency_pointing_game": float in [0, 1], higher is better}.
    """

    CITATION = """@article{zhang2018top,
  title={Top-Down Neural Attention by Excitation Backprop},
  author={Zhang, Jianming and Bargal, Sarah Adel and Lin, Zhe and Brandt, Jonathan and Shen, Xiaohui
    and Sclaroff, Stan},
  journal={International Journal of Computer Vision},
  volume={126},
  pages={1084--1102},
  year={2018}
}"""
    URL = "https://arxiv.org/abs/1608.00507"

    def scores(self, maps, references, *, ties: Literal["share", "any"] = "share", tolerance: float = 0):
        return saliency_pointing_game(maps, references, ties=ties, tolerance=tolerance)
