"""`evaluate` module: accuracy where top pixels are kept. The metric is in score.py; it needs saliency_bench."""

import evaluate

from saliency_bench.scoring.evaluate_shell import CurveShell


class SaliencyKae(CurveShell, evaluate.Metric):
    """Area under the classifier's accuracy over the share of each image's top pixels that alone is kept.

    Args:
        predictions: saliency maps (B, H, W), higher = more salient. references: the class (int) of each image.
        images: (B, 3, H, W) in [0, 1], before the classifier's normalisation, in the order of the maps.
        classifier: a Hub id, a folder, "torchvision:resnet18", or what saliency_bench.load_classifier gives.
        batch_size: images in one forward pass (default 16).
        reference: "black" (default), "mean", "blur", "noise", "inpaint" or "linear".
        exposure: one share in [0, 1] instead of the area.
        per_sample: add the list "scores" (default False).

    Returns:
        {"saliency_kae": float in [0, 1], higher is better}.
    """

    CITATION = """@inproceedings{lu2021crowdsourcing,
  title={Crowdsourcing Evaluation of Saliency-based {XAI} Methods},
  author={Lu, Xiaotian and Tolmachev, Arseny and Yamamoto, Tatsuya and Takeuchi, Koh and Okajima, Seiji and
    Takebayashi, Tomoyoshi and Maruhashi, Koji and Kashima, Hisashi},
  booktitle={European Conference on Machine Learning and Knowledge Discovery in Databases},
  year={2021}
}"""
    URL = "https://arxiv.org/abs/2107.00456"
