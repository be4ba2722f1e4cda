"""`evaluate` module: pointwise group score, computed in score.py; needs saliency_bench."""

import evaluate

from saliency_bench.scoring.evaluate_shell import ExplainerShell


class SaliencyPgs(ExplainerShell, evaluate.Metric):
    """How the classes of a group fall once the evidence for the group is taken out of the image.

    Args:
        images: (B, 3, H, W) in [0, 1], before the classifier's normalisation.
        classifier: a Hub id, a folder, "torchvision:resnet18", or what saliency_bench.load_classifier gives.
        explainer: a name ("gradcam", "rise:masks=1000") or a function (classifier, images, target) -> maps (B, H, W).
        groups: {name: [class, ...]} of the classifier's classes, by name or number, or a JSON or CSV file of it; not
            needed for ImageNet, Oxford-IIIT Pet, PASCAL VOC and shapes-xai.
        reference: "black" (default), "blur", "mean", "noise", "inpaint" or "linear". published: as the authors' code.
        batch_size: images explained at once (default 16). seeds: of each image (default 0 to B-1).
        per_sample: add the list "scores" (default False).

    Returns:
        {"saliency_pgs": float in [-1, 1], higher is better}.
    """

    CITATION = """@article{elisha2025rethinking,
  title={Rethinking Saliency Maps: A Cognitive Human Aligned Taxonomy and Evaluation Framework for Explanations},
  author={Elisha, Yehonatan and Cohen, Seffi and Barkan, Oren and Koenigstein, Noam},
  journal={arXiv preprint arXiv:2511.13081},
  year={2025}
}"""
    URL = "https://arxiv.org/abs/2511.13081"
    LEFT_OUT = "a predicted class in no group"
