"""`evaluate` module: contrastive AUC of saliency maps. The metric itself is in score.py; it needs saliency_bench."""

import evaluate

from saliency_bench.scoring.evaluate_shell import CurveShell


class SaliencyCauc(CurveShell, evaluate.Metric):
    """Area under p_A (1 - p_B) as the salient pixels of a map leave: how long class A outlives class B.

    Args:
        predictions: saliency maps (B, H, W), higher = more salient. references: the class (int) of each image.
        images: (B, 3, H, W) in [0, 1], before the classifier's normalisation, in the order of the maps.
        classifier: a Hub id, a folder, "torchvision:resnet18", or what saliency_bench.load_classifier gives.
        target: weights (B, K) over the classes, instead of the references (which may then be None).
        batch_size: images in one forward pass (default 16).
        step: pixels that leave together (default 16). threshold: where a pixel is salient (default 0.5).
        salient: "range" (default) of the map's values, or share of their "maximum".
        reference: "mean" (default), "black", "blur", "noise", "inpaint" or "linear".
        per_sample: add the list "scores" (default False).

    Returns:
        {"saliency_cauc": float in [0, 1], lower is better}.
    """

    CITATION = """@inproceedings{xie2023two,
  title={Two-stage holistic and contrastive explanation of image classification},
  author={Xie, Weiyan and Li, Xiao-Hui and Lin, Zhi and Poon, Leonard K. M. and Cao, Caleb Chen and Zhang, Nevin L.},
  booktitle={Uncertainty in Artificial Intelligence},
  pages={2335--2345},
  year={2023}
}"""
    URL = "https://arxiv.org/abs/2306.06339"
