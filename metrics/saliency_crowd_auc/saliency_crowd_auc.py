"""Module for `evaluate`; the metric is declared in score.py.

Example:
    >>> import evaluate
    >>> metric = evaluate.load("saliency_crowd_auc")
    >>> first_right = [0.05, 0.1, 0.1, 0.5, None]  # one person never named the class
    >>> result = metric.compute(predictions=first_right, per_sample=True)
    >>> print(round(result["saliency_crowd_auc"], 4))
    0.685
    >>> print([round(score, 4) for score in result["scores"]])
    [0.975, 0.925, 0.925, 0.6, 0.0]
"""

from typing import Any

import datasets
import evaluate

from saliency_bench.compute.scoring.evaluate_shell import MapOnlyShell
from saliency_bench.read.statistics.exposures import read_first_right

from .score import saliency_crowd_auc


class SaliencyCrowdAuc(MapOnlyShell, evaluate.Metric):
    """Wrapper for `evaluate`. The metric itself is declared in score.py."""

    INPUTS = """predictions: the exposures (N,) at which the judgements were first correct, as fractions of the pixels:
        above 0 and at most 1. None for a judgement that ended without a correct answer."""
    ALONE = "uses only people's answers"
    function = staticmethod(saliency_crowd_auc)

    def _info(self) -> evaluate.MetricInfo:
        """Return the description of the metric for `evaluate`."""
        info = super()._info()
        info.format = None  # arrays would be float32, but analyses compute in float64
        return info

    def _features(self, size: tuple[int, ...]) -> datasets.Features:
        return datasets.Features({"predictions": datasets.Value("float64")})

    def _inputs(self, predictions: Any = None, references: Any = None) -> dict[str, Any]:
        """Return the exposure (N,) at the first correct answer in each judgement, or NaN if no answer is correct."""
        self._refuse(references)
        if predictions is None:
            raise ValueError(
                f"{self.name} needs `predictions`, which contains the exposure at the first correct answer in each "
                "judgement"
            )
        return {"predictions": read_first_right(predictions)}
