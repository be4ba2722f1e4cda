"""`evaluate` module: class deviation score. The metric itself is in score.py; it needs saliency_bench."""

import evaluate

from saliency_bench.scoring.evaluate_shell import CurveShell


class SaliencyCds(CurveShell, evaluate.Metric):
    """Mean shift of the class probability when a growing share of a map's top pixels is masked.

    Args:
        predictions: saliency maps (B, H, W), higher = more salient. references: the class (int) of each image.
        images: (B, 3, H, W) in [0, 1], before the classifier's normalisation, in the order of the maps.
        classifier: a Hub id, a folder, "torchvision:resnet18", or what saliency_bench.load_classifier gives.
        target: weights (B, K) over the classes, instead of the references (which may then be None).
        batch_size: images in one forward pass (default 16).
        reference: "black" (default), "mean", "blur", "noise", "inpaint" or "linear".
        per_sample: add the list "scores" (default False).

    Returns:
        {"saliency_cds": float in [-1, 1], higher is better}.
    """

    CITATION = """@article{elisha2025rethinking,
  title={Rethinking Saliency Maps: A Cognitive Human Aligned Taxonomy and Evaluation Framework for Explanations},
  author={Elisha, Yehonatan and Cohen, Seffi and Barkan, Oren and Koenigstein, Noam},
  journal={arXiv preprint arXiv:2511.13081},
  year={2025}
}"""
    URL = "https://arxiv.org/abs/2511.13081"
