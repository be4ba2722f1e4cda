"""`evaluate` module: max-sensitivity of an explainer. The metric itself is in score.py; it needs saliency_bench."""

import evaluate

from saliency_bench.scoring.evaluate_shell import ExplainerShell


class SaliencyMaxSensitivity(ExplainerShell, evaluate.Metric):
    """Largest relative change of a saliency map over small random changes of the image.

    Args:
        images: (B, 3, H, W) in [0, 1], before the classifier's normalisation.
        classifier: a Hub id, a folder, "torchvision:resnet18", or what saliency_bench.load_classifier gives.
        explainer: a name ("gradcam", "rise:masks=1000") or a function (classifier, images, target) -> maps (B, H, W).
        references: the class (int) of each image; without them, or with target: weights (B, K), the predicted class or
            what the weights say.
        radius: of the change, in units of the normalised image (default 0.2). draws: how many changes (default 10).
        relative: divide by the norm of the map (default True).
        batch_size: images explained at once (default 16). seeds: of each image (default 0 to B-1).
        per_sample: add the list "scores" (default False).

    Returns:
        {"saliency_max_sensitivity": float 0 or more, lower is better}.
    """

    CITATION = """@inproceedings{yeh2019infidelity,
  title={On the (In)fidelity and Sensitivity of Explanations},
  author={Yeh, Chih-Kuan and Hsieh, Cheng-Yu and Suggala, Arun Sai and Inouye, David I. and Ravikumar, Pradeep},
  booktitle={Advances in Neural Information Processing Systems},
  year={2019}
}"""
    URL = "https://arxiv.org/abs/1901.09392"
    LEFT_OUT = "a constant map"
