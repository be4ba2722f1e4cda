"""`evaluate` module: randomisation test of an explainer. The metric is in score.py; it needs saliency_bench."""

import evaluate

from saliency_bench.scoring.evaluate_shell import ExplainerShell


class SaliencyRandomisation(ExplainerShell, evaluate.Metric):
    """Similarity of saliency maps before and after the classifier's layers are re-initialised, from the logits down.

    Args:
        images: (B, 3, H, W) in [0, 1], before the classifier's normalisation.
        classifier: a Hub id, a folder, "torchvision:resnet18", or what saliency_bench.load_classifier gives.
        explainer: a name ("gradcam", "rise:masks=1000") or a function (classifier, images, target) -> maps (B, H, W).
        references: the class (int) of each image; without them, or with target: weights (B, K), the predicted class or
            what the weights say.
        form: "ssim" (default) or "spearman" of absolute maps, or "complexity": relative rise of the entropy of maps.
        smooth: noisy copies of each image over which a map is averaged (default 0: none).
        layers: stages at which maps are compared (default 0: each layer).
        batch_size: images explained at once (default 16). seed: of the weights (default 0). seeds: of each image
            (default 0 to B-1). per_sample: add the list "scores" (default False).

    Returns:
        {"saliency_randomisation": float in [-1, 1], lower is better; for "complexity" -1 or more, higher is better}.
    """

    CITATION = """@inproceedings{adebayo2018sanity,
  title={Sanity Checks for Saliency Maps},
  author={Adebayo, Julius and Gilmer, Justin and Muelly, Michael and Goodfellow, Ian and Hardt, Moritz and Kim, Been},
  booktitle={Advances in Neural Information Processing Systems},
  year={2018}
}"""
    URL = "https://arxiv.org/abs/1810.03292"
    LEFT_OUT = "a constant map"
