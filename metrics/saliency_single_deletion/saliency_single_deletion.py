"""`evaluate` module: single deletion score. The metric itself is in score.py; it needs saliency_bench."""

import evaluate

from saliency_bench.scoring.evaluate_shell import CurveShell


class SaliencySingleDeletion(CurveShell, evaluate.Metric):
    """Spearman correlation of what a map gives each patch and of how far the logit falls without that patch.

    Args:
        predictions: saliency maps (B, H, W), higher = more salient. references: the class (int) of each image.
        images: (B, 3, H, W) in [0, 1], before the classifier's normalisation, in the order of the maps.
        classifier: a Hub id, a folder, "torchvision:resnet18", or what saliency_bench.load_classifier gives.
        target: weights (B, K) over the classes, instead of the references (which may then be None).
        batch_size: images scored at once (default 16).
        grid: patches along a side (default 4).
        reference: "mean" (default), "black", "blur", "noise", "inpaint" or "linear".
        per_sample: add the list "scores" (default False).

    Returns:
        {"saliency_single_deletion": float in [-1, 1], higher is better}.
    """

    CITATION = """@inproceedings{hesse2024benchmarking,
  title={Benchmarking the Attribution Quality of Vision Models},
  author={Hesse, Robin and Schaub-Meyer, Simone and Roth, Stefan},
  booktitle={Advances in Neural Information Processing Systems},
  year={2024}
}"""
    URL = "https://arxiv.org/abs/2407.11910"
