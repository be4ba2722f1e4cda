"""`evaluate` module: the area under the accuracies of networks that a run of saliency_bench has trained."""

import evaluate

from saliency_bench.scoring.evaluate_shell import AreaShell


class SaliencyRoar(AreaShell, evaluate.Metric):
    """Area under the accuracy of networks that were trained on pictures without the top pixels of saliency maps.

    Networks are trained by `saliency-bench run --metrics saliency_roar`; here their accuracies become the score.

    Args:
        predictions: the accuracies (N,) of the networks, in [0, 1].
        references: the exposure (N,) of each, the share of the pixels, in [0, 1]; several trainings at one exposure are
            averaged.

    Returns:
        {"saliency_roar": float in [0, 1], lower is better}, the area by the trapezoid rule, divided
        by the width of the exposures.
    """

    CITATION = """@inproceedings{hooker2019benchmark,
  title={A Benchmark for Interpretability Methods in Deep Neural Networks},
  author={Hooker, Sara and Erhan, Dumitru and Kindermans, Pieter-Jan and Kim, Been},
  booktitle={Advances in Neural Information Processing Systems},
  year={2019}
}"""
    URL = "https://arxiv.org/abs/1806.10758"
