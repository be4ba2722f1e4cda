"""`evaluate` module: the area under the accuracy of people. The metric itself is in score.py."""

from collections.abc import Sequence
from typing import Any

import datasets
import evaluate

from saliency_bench.scoring.evaluate_shell import MapOnlyShell, MapShell
from saliency_bench.scoring.exposures import SHOWN, read_first_right

from .score import saliency_crowd_auc


class SaliencyCrowdAuc(MapOnlyShell, evaluate.Metric):
    """Area under the accuracy of people who see more and more of the top pixels of saliency maps.

    Args:
        predictions: the exposure (N,) at which each judgement was first right, a share of the pixels above 0 and at
            most 1; None where it ended without a right answer.
        exposures: the shares at which people were asked (default 0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1).
        per_sample: add the list "scores", the area of each judgement (default False).

    Returns:
        {"saliency_crowd_auc": float in [0, 1], higher is better}, the area by the trapezoid rule, 0 where no pixel is
        shown.
    """

    CITATION = """@inproceedings{lu2021crowdsourcing,
  title={Crowdsourcing Evaluation of Saliency-based {XAI} Methods},
  author={Lu, Xiaotian and Tolmachev, Arseny and Yamamoto, Tatsuya and Takeuchi, Koh and Okajima, Seiji and
    Takebayashi, Tomoyoshi and Maruhashi, Koji and Kashima, Hisashi},
  booktitle={European Conference on Machine Learning and Knowledge Discovery in Databases},
  year={2021}
}"""
    URL = "https://arxiv.org/abs/2107.00456"
    ALONE = "takes the answers of people alone"

    def _info(self) -> evaluate.MetricInfo:
        info = super()._info()
        info.format = None  # as arrays the numbers would come back in float32, and an analysis computes in float64
        return info

    def _features(self, size: tuple[int, int]) -> datasets.Features:
        return datasets.Features({"predictions": datasets.Value("float64")})

    def add_batch(self, *, predictions: Any = None, references: Any = None, **kwargs: Any) -> None:
        """Add judgements: the exposure (N,) of the first right answer of each, None where there is none."""
        self._refuse(references)
        if predictions is None:
            raise ValueError(f"{self.name} needs predictions, the exposure of the first right answer of each judgement")
        super(MapShell, self).add_batch(predictions=read_first_right(predictions), **kwargs)

    def scores(self, first_right, references, *, exposures: Sequence[float] = SHOWN):
        return saliency_crowd_auc(first_right, exposures=exposures)
