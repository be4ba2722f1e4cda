"""`evaluate` module: input dependence rate of an explainer, computed in score.py; needs saliency_bench."""

import evaluate

from saliency_bench.scoring.evaluate_shell import ExplainerShell


class SaliencyIdr(ExplainerShell, evaluate.Metric):
    """How often a scene model's map gives a region more when an object that means nothing to it is pasted there.

    Args:
        images: (B, 3, H, W) in [0, 1], before the classifier's normalisation. masks: bool (B, H, W), the object.
        classifier: any that takes these images; it takes no part.
        other, other_labels: a classifier of scenes, and the scene's class of each image (B,).
        explainer: a name ("gradcam", "rise:masks=1000") or a function (classifier, images, target) -> maps (B, H, W).
        columns: {"image_without_object": (B, 3, H, W)}, the same scenes without the object.
        batch_size: images explained at once (default 16). seeds: of each image (default 0 to B-1).
        per_sample: add the list "scores" (default False).

    Returns:
        {"saliency_idr": float in [0, 1], lower is better; 0.5 is chance}.
    """

    CITATION = """@article{yang2019benchmarking,
  title={Benchmarking Attribution Methods with Relative Feature Importance},
  author={Yang, Mengjiao and Kim, Been},
  journal={arXiv preprint arXiv:1907.09701},
  year={2019}
}"""
    URL = "https://arxiv.org/abs/1907.09701"
    LEFT_OUT = "a picture that the scene model does not classify rightly"
