"""`evaluate` module: consistency of an explainer. The metric itself is in score.py; it needs saliency_bench."""

import evaluate

from saliency_bench.scoring.evaluate_shell import ExplainerShell


class SaliencyConsistency(ExplainerShell, evaluate.Metric):
    """Time warping distance of saliency maps of an image and of the shifted, turned or mirrored image.

    Args:
        images: (B, 3, H, W) in [0, 1], before the classifier's normalisation.
        classifier: a Hub id, a folder, "torchvision:resnet18", or what saliency_bench.load_classifier gives.
        explainer: a name ("gradcam", "rise:masks=1000") or a function (classifier, images, target) -> maps (B, H, W).
        references: the class (int) of each image; without them, or with target: weights (B, K), the predicted class or
            what the weights say.
        transform: "all" (default), or one of right, left, down, up, rotate-15, rotate-10, rotate-5, rotate+5,
            rotate+10, rotate+15, flip_horizontal, flip_vertical.
        region: "common" (default) or "frame". radius: of FastDTW (default 1). series: "rows" (default), "columns" or
            "vectors".
        batch_size: images explained at once (default 16). seeds: of each image (default 0 to B-1).
        per_sample: add the list "scores" (default False).

    Returns:
        {"saliency_consistency": float 0 or more, lower is better}.
    """

    CITATION = """@misc{anonymous2020evaluating,
  title={On Evaluating Explainability Algorithms},
  author={Anonymous},
  note={Submitted to the International Conference on Learning Representations},
  year={2020}
}"""
    URL = "https://openreview.net/group?id=ICLR.cc/2020/Conference"
    LEFT_OUT = "a constant map, or no transform that keeps the prediction"
