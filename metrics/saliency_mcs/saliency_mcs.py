"""`evaluate` module: model contrast score of an explainer, computed in score.py; needs saliency_bench."""

import evaluate

from saliency_bench.scoring.evaluate_shell import ExplainerShell


class SaliencyMcs(ExplainerShell, evaluate.Metric):
    """By how much more an object gets, on average, from the map of an object model than from that of a scene model.

    Args:
        images: (B, 3, H, W) in [0, 1], before the classifier's normalisation. masks: bool (B, H, W), the object.
        classifier, labels: of objects, and the object's class in each image (B,).
        other, other_labels: a classifier of scenes, and the scene's class of each image (B,).
        explainer: a name ("gradcam", "rise:masks=1000") or a function (classifier, images, target) -> maps (B, H, W).
        batch_size: images explained at once (default 16). seeds: of each image (default 0 to B-1).
        per_sample: add the list "scores" (default False).

    Returns:
        {"saliency_mcs": float in [-1, 1], higher is better}.
    """

    CITATION = """@article{yang2019benchmarking,
  title={Benchmarking Attribution Methods with Relative Feature Importance},
  author={Yang, Mengjiao and Kim, Been},
  journal={arXiv preprint arXiv:1907.09701},
  year={2019}
}"""
    URL = "https://arxiv.org/abs/1907.09701"
    LEFT_OUT = "a model that does not classify it rightly"
