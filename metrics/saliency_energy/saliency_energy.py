"""`evaluate` module: share of a map's positive values that lies in the mask. The metric itself is in score.py."""

import evaluate

from saliency_bench.scoring.evaluate_shell import MapShell

from .score import saliency_energy


class SaliencyEnergy(MapShell, evaluate.Metric):
    """Mean over samples of the share of a map's positive values, by their sum, that lies in the mask.

    Args:
        predictions: saliency maps (B, H, W), higher = more salient. references: masks (B, H, W), 0 and 1.
        per_sample: add the list "scores", NaN where a mask is empty (default False).

    Returns:
        {"saliency_energy": float in [0, 1], higher is better}.
    """

    CITATION = """@inproceedings{wang2020scorecam,
  title={Score-CAM: Score-Weighted Visual Explanations for Convolutional Neural Networks},
  author={Wang, Haofan and Wang, Zifan and Du, Mengnan and Yang, Fan and Zhang, Zijian and Ding, Sirui
    and Mardziel, Piotr and Hu, Xia},
  booktitle={CVPR Workshops},
  year={2020}
}"""
    URL = "https://arxiv.org/abs/1910.01279"

    def scores(self, maps, references):
        return saliency_energy(maps, references)
