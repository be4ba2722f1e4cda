"""`evaluate` module: correctness of an explainer. The metric itself is in score.py; it needs saliency_bench."""

import evaluate

from saliency_bench.scoring.evaluate_shell import ExplainerShell


class SaliencyCorrectness(ExplainerShell, evaluate.Metric):
    """Pseudo-F1 of the accuracies where salient regions are pasted into pictures of their class, and where the rest is.

    Args:
        images: (B, 3, H, W) in [0, 1], before the classifier's normalisation. references: the class of each image.
        classifier: a Hub id, a folder, "torchvision:resnet18", or what saliency_bench.load_classifier gives.
        explainer: a name ("gradcam", "rise:masks=1000") or a function (classifier, images, target) -> maps (B, H, W).
        k, pairings, threshold, by, top: options, see the card.
        batch_size: images explained at once (default 16). seeds: of each image (default 0 to B-1).
        per_sample: add "scores", the six accuracies of each image (default False).

    Returns:
        {"saliency_correctness": float in [0, 1], higher is better}.
    """

    CITATION = """@misc{anonymous2020evaluating,
  title={On Evaluating Explainability Algorithms},
  author={Anonymous},
  note={Submitted to the International Conference on Learning Representations},
  year={2020}
}"""
    URL = "https://openreview.net/group?id=ICLR.cc/2020/Conference"
    LEFT_OUT = "no part in the pictures that are pasted together"
