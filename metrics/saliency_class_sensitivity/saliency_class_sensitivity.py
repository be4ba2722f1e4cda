"""`evaluate` module: class sensitivity of an explainer. The metric itself is in score.py; it needs saliency_bench."""

import evaluate

from saliency_bench.scoring.evaluate_shell import ExplainerShell


class SaliencyClassSensitivity(ExplainerShell, evaluate.Metric):
    """Pearson correlation of the saliency maps for the most and for the least likely class.

    Args:
        images: (B, 3, H, W) in [0, 1], before the classifier's normalisation.
        classifier: a Hub id, a folder, "torchvision:resnet18", or what saliency_bench.load_classifier gives.
        explainer: a name ("gradcam", "rise:masks=1000") or a function (classifier, images, target) -> maps (B, H, W).
        batch_size: images explained at once (default 16). seeds: of each image (default 0 to B-1).
        per_sample: add the list "scores" (default False).

    Returns:
        {"saliency_class_sensitivity": float in [-1, 1], lower is better}.
    """

    CITATION = """@article{li2020quantitative,
  title={Quantitative Evaluations on Saliency Methods: An Experimental Study},
  author={Li, Xiao-Hui and Shi, Yuhan and Li, Haoyang and Bai, Wei and Song, Yuanwei and Cao, Caleb Chen
    and Chen, Lei},
  journal={arXiv preprint arXiv:2012.15616},
  year={2020}
}"""
    URL = "https://arxiv.org/abs/2012.15616"
    LEFT_OUT = "a constant map"
