"""`evaluate` module: accuracy as pixels are removed and imputed. The metric is in score.py; it needs saliency_bench."""

import evaluate

from saliency_bench.scoring.evaluate_shell import CurveShell


class SaliencyRoad(CurveShell, evaluate.Metric):
    """Area under the classifier's accuracy over the share of each image's pixels that is removed and imputed (ROAD).

    Args:
        predictions: saliency maps (B, H, W), higher = more salient. references: the class (int) of each image.
        images: (B, 3, H, W) in [0, 1], before the classifier's normalisation, in the order of the maps.
        classifier: a Hub id, a folder, "torchvision:resnet18", or what saliency_bench.load_classifier gives.
        batch_size: images in one forward pass (default 16).
        order: "morf" (default): the most relevant pixels are removed; "lerf": all but these.
        exposure: one share in [0, 1] instead of the area.
        per_sample: add the list "scores" (default False).

    Returns:
        {"saliency_road": float in [0, 1], lower is better, with "lerf" higher}.
    """

    CITATION = """@inproceedings{rong2022consistent,
  title={A Consistent and Efficient Evaluation Strategy for Attribution Methods},
  author={Rong, Yao and Leemann, Tobias and Borisov, Vadim and Kasneci, Gjergji and Kasneci, Enkelejda},
  booktitle={International Conference on Machine Learning},
  year={2022}
}"""
    URL = "https://arxiv.org/abs/2202.00449"
