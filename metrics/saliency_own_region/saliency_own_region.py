"""`evaluate` module: accuracy on salient regions alone. The metric is in score.py; it needs saliency_bench."""

import evaluate

from saliency_bench.scoring.evaluate_shell import CurveShell


class SaliencyOwnRegion(CurveShell, evaluate.Metric):
    """The classifier's accuracy on pictures that show only the salient region of their own map.

    Args:
        predictions: saliency maps (B, H, W), higher = more salient. references: the class (int) of each image.
        images: (B, 3, H, W) in [0, 1], before the classifier's normalisation, in the order of the maps.
        classifier: a Hub id, a folder, "torchvision:resnet18", or what saliency_bench.load_classifier gives.
        batch_size: images in one forward pass (default 16).
        reference: "black" (default), "mean", "blur", "noise", "inpaint" or "linear".
        threshold: of the map's range (default 0.5). by: "value" (default) or "percentile".
        per_sample: add the list "scores" (default False).

    Returns:
        {"saliency_own_region": float in [0, 1], higher is better}.
    """

    CITATION = """@misc{anonymous2020evaluating,
  title={On Evaluating Explainability Algorithms},
  author={Anonymous},
  note={Submitted to the International Conference on Learning Representations},
  year={2020}
}"""
    URL = "https://openreview.net/group?id=ICLR.cc/2020/Conference"
