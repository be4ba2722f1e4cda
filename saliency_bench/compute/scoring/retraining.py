"""Retraining metrics: what a network can learn from pictures whose top pixels, or all others, are replaced.

    exposure r -> the top share r of the pixels of each picture, by a map -> replaced, or all but these -> a network is
    trained on such pictures and asked about others of the kind

`compute.retraining` trains; here is what a metric and its protocol have in common.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from saliency_bench.bound_metric import Metric
from saliency_bench.compute.scoring.perturbation import fraction_counts
from saliency_bench.compute.targets.terms import TargetTerms
from saliency_bench.errors import UserError
from saliency_bench.maps import descending
from saliency_bench.read.statistics.exposures import EXPOSURES, area
from saliency_bench.types import Images

Test = Literal["modified", "clean"]
Initial = Literal["new", "base"]
NO_ANSWER = -1


@dataclass(frozen=True)
class RetrainingProtocol:
    """Protocol of a retraining: the options of a retraining metric, and which pixels its pictures keep.

    Attributes:
        keeps: "rest", all but the top share (ROAR), or "top" (KAR).
        initial: "new", or of the checkpoint whose weights networks start from the digest, "base" before it is known.
        exposures: some of `EXPOSURES`.
    """

    keeps: str
    test: Test
    trainings: int
    epochs: int
    learning_rate: float
    batch_size: int
    images: int | None
    initial: str = "new"
    exposures: tuple[float, ...] = EXPOSURES

    @classmethod
    def from_metric(cls, metric: Metric) -> "RetrainingProtocol":
        """Return the protocol of a metric."""
        return cls(metric.declaration.keeps, **dict(metric.options) | {"exposures": exposures_of(metric.options)})  # type: ignore[arg-type]


def exposures_of(options: Iterable[tuple[str, Any]]) -> tuple[float, ...]:
    """Return the exposures of a metric's options; all where it names none."""
    return tuple(dict(options).get("exposures") or EXPOSURES)


def part_names(options: dict[str, Any], classifier: object) -> list[str]:
    """Return the names of the parts: "0.05 training 1"."""
    numbers = range(1, options["trainings"] + 1)
    return [f"{exposure:g} training {number}" for exposure in exposures_of(options.items()) for number in numbers]


def right_answers(answers: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return float64 (B, P): 1 where an answer (B, P) is a right class, by labels Bool (B, K), else 0; NaN for none."""
    right = np.take_along_axis(labels.astype(float), np.maximum(answers, 0), axis=1)
    return np.where(answers == NO_ANSWER, np.nan, right)


def retrained_area(values: np.ndarray, options: dict[str, Any]) -> np.ndarray:
    """Return (B,): the area over the exposures of the share of trainings that are right.

    NaN where a part is missing.
    """
    exposures = exposures_of(options.items())
    return area(values.reshape(len(values), len(exposures), options["trainings"]).mean(axis=2), exposures)


def predicted(options: dict[str, Any], probabilities: np.ndarray, groups: object) -> list[tuple[TargetTerms, ...]]:
    """Return the target of a retraining metric, the predicted class, whatever the run's target is."""
    return [() if np.isnan(row).any() else (TargetTerms((int(row.argmax()),)),) for row in probabilities]


def check_protocol(**options: Any) -> None:
    """Raise UserError for numbers that nothing can be trained with."""
    for name in ("trainings", "epochs", "batch_size", "images"):
        if options[name] is not None and options[name] < 1:
            raise UserError(f"{name}={options[name]} is too small; it must be at least 1")
    if not 0 < options["learning_rate"] < float("inf"):
        raise UserError(f"learning_rate={options['learning_rate']} must be above 0 and finite")
    if (given := options["exposures"]) is not None:
        places = [EXPOSURES.index(exposure) if exposure in EXPOSURES else -1 for exposure in given]
        if len(places) < 2 or places != sorted(set(places) - {-1}):
            known = ", ".join(f"{exposure:g}" for exposure in EXPOSURES)
            raise UserError(f"exposures={list(given)} must be two or more of {known}, in increasing order")


def first_exposures(maps: np.ndarray) -> np.ndarray:
    """Return uint8 (B, H, W): the number in `EXPOSURES` of the first one at which a pixel is among the top ones."""
    batch, height, width = maps.shape
    places = np.empty((batch, height * width), np.int64)
    np.put_along_axis(places, descending(maps).reshape(batch, -1), np.arange(height * width)[None], axis=1)
    counts = fraction_counts(height, width, EXPOSURES)
    return np.searchsorted(counts, places, side="right").astype(np.uint8).reshape(maps.shape)


def changed(images: Images, first: Tensor | None, exposure: int, keeps: str, colour: Tensor) -> Images:
    """Return images in which pixels take a colour (3,): the top ones at exposure number `exposure`, or all but these.

    Args:
        images: to change.
        first: as `first_exposures` gives them; None where it does not matter, at an exposure of nothing or everything.
        exposure: its number.
        keeps: as of `RetrainingProtocol`.
        colour: that pixels take.
    """
    if first is None:
        keeps_all = (exposure == 0) == (keeps == "rest")
        return images if keeps_all else colour.view(1, 3, 1, 1).expand_as(images).to(images)
    top = (first <= exposure)[:, None]
    return torch.where(top if keeps == "top" else ~top, images, colour.to(images).view(1, 3, 1, 1))
