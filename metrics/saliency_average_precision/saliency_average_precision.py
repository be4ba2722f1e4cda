"""`evaluate` module: pixel-wise average precision of saliency maps against masks. The metric itself is in score.py."""

import evaluate

from saliency_bench.scoring.evaluate_shell import MapShell

from .score import saliency_average_precision


class SaliencyAveragePrecision(MapShell, evaluate.Metric):
    """Mean over samples of the average precision with which the order of a saliency map's pixels finds the mask.

    Args:
        predictions: saliency maps (B, H, W), higher = more salient. references: masks (B, H, W), 0 and 1.
        per_sample: add the list "scores", NaN where a mask is empty (default False).

    Returns:
        {"saliency_average_precision": float in (0, 1], higher is better}.
    """

    CITATION = """@inproceedings{davis2006relationship,
  title={The relationship between Precision-Recall and ROC curves},
  author={Davis, Jesse and Goadrich, Mark},
  booktitle={International Conference on Machine Learning},
  pages={233--240},
  year={2006}
}"""
    URL = "https://doi.org/10.1145/1143844.1143874"

    def scores(self, maps, references):
        return saliency_average_precision(maps, references)
