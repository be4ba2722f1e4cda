"""`evaluate` module: deletion score of saliency maps. The metric itself is in score.py; it needs saliency_bench."""

import evaluate

from saliency_bench.scoring.evaluate_shell import CurveShell


class SaliencyDeletion(CurveShell, evaluate.Metric):
    """Area under the class probability as the top pixels of a map leave for a reference picture.

    Args:
        predictions: saliency maps (B, H, W), higher = more salient. references: the class (int) of each image.
        images: (B, 3, H, W) in [0, 1], before the classifier's normalisation, in the order of the maps.
        classifier: a Hub id, a folder, "torchvision:resnet18", or what saliency_bench.load_classifier gives.
        target: weights (B, K) over the classes, instead of the references (which may then be None).
        batch_size: images in one forward pass (default 16).
        reference: "black" (default), "mean", "blur", "noise", "inpaint" or "linear".
        steps: points of the curve less one; default one image row each.
        per_sample: add the list "scores" (default False).

    Returns:
        {"saliency_deletion": float, lower is better}, in [0, 1] for one class.
    """

    CITATION = """@inproceedings{petsiuk2018rise,
  title={RISE: Randomized Input Sampling for Explanation of Black-box Models},
  author={Petsiuk, Vitali and Das, Abir and Saenko, Kate},
  booktitle={British Machine Vision Conference},
  year={2018}
}"""
    URL = "https://arxiv.org/abs/1806.07421"
