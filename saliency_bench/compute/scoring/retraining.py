"""Score retraining metrics. They measure how well networks learn from pictures with replaced pixels.

At an exposure r, the fraction r of pixels with the highest map values, or all other pixels, are replaced in each
picture. A network is trained on such pictures and tested on other pictures.

`compute.retraining` trains the networks; this module contains the functions that these metrics share, and their
protocols.
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
    """Protocol of a retraining metric: its options, and which pixels the pictures keep.

    Attributes:
        keeps: "rest" to keep all but the top pixels (ROAR), or "top" to keep the top pixels (KAR).
        test: Pictures to test on: "modified" or "clean".
        trainings: Number of training runs per exposure.
        epochs: Number of passes over the training images.
        learning_rate: Learning rate.
        batch_size: Number of images per step.
        images: Number of training images; None for all.
        initial: "new" for random weights, or the digest of the checkpoint that networks start from ("base" until the
            digest is known).
        exposures: Exposures to train at, from `EXPOSURES`.
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
    """Return the exposures in a metric's options. By default, these are all exposures."""
    return tuple(dict(options).get("exposures") or EXPOSURES)


def part_names(options: dict[str, Any], classifier: object) -> list[str]:
    """Return the names of the parts, such as "0.05 training 1"."""
    numbers = range(1, options["trainings"] + 1)
    return [f"{exposure:g} training {number}" for exposure in exposures_of(options.items()) for number in numbers]


def right_answers(answers: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return 1 for a correct prediction, 0 for a wrong one and NaN for a missing one, float64 (B, P)."""
    right = np.take_along_axis(labels.astype(float), np.maximum(answers, 0), axis=1)
    return np.where(answers == NO_ANSWER, np.nan, right)


def retrained_area(values: np.ndarray, options: dict[str, Any]) -> np.ndarray:
    """Return the area under the fraction of correct networks as a function of the exposure, (B,).

    The area is NaN if the prediction of any network is missing.
    """
    exposures = exposures_of(options.items())
    return area(values.reshape(len(values), len(exposures), options["trainings"]).mean(axis=2), exposures)


def predicted(options: dict[str, Any], probabilities: np.ndarray, groups: object) -> list[tuple[TargetTerms, ...]]:
    """Return the predicted class. It is the target of every retraining metric, independent of the run's target."""
    return [() if np.isnan(row).any() else (TargetTerms((int(row.argmax()),)),) for row in probabilities]


def check_protocol(**options: Any) -> None:
    """Raise UserError if no network can be trained with these options."""
    for name in ("trainings", "epochs", "batch_size", "images"):
        if options[name] is not None and options[name] < 1:
            raise UserError(f"{name}={options[name]} is too small; it must be at least 1")
    if not 0 < options["learning_rate"] < float("inf"):
        raise UserError(f"learning_rate must be above 0 and finite; got {options['learning_rate']}")
    if (given := options["exposures"]) is not None:
        places = [EXPOSURES.index(exposure) if exposure in EXPOSURES else -1 for exposure in given]
        if len(places) < 2 or places != sorted(set(places) - {-1}):
            known = ", ".join(f"{exposure:g}" for exposure in EXPOSURES)
            raise UserError(f"exposures must be two or more of {known}, in increasing order; got {list(given)}")


def first_exposures(maps: np.ndarray) -> np.ndarray:
    """Return, for each pixel, the index in `EXPOSURES` of the first exposure that includes it, uint8 (B, H, W)."""
    batch, height, width = maps.shape
    places = np.empty((batch, height * width), np.int64)
    np.put_along_axis(places, descending(maps).reshape(batch, -1), np.arange(height * width)[None], axis=1)
    counts = fraction_counts(height, width, EXPOSURES)
    return np.searchsorted(counts, places, side="right").astype(np.uint8).reshape(maps.shape)


def changed(images: Images, first: Tensor | None, exposure: int, keeps: str, colour: Tensor) -> Images:
    """Replace the top pixels at an exposure, or all other pixels, with a colour.

    Args:
        images: Images to change.
        first: Result of `first_exposures`. It may be None at an exposure of no pixels or all pixels.
        exposure: Index of the exposure in `EXPOSURES`.
        keeps: As in `RetrainingProtocol`.
        colour: Colour (3,) of the replaced pixels.
    """
    if first is None:
        keeps_all = (exposure == 0) == (keeps == "rest")
        return images if keeps_all else colour.view(1, 3, 1, 1).expand_as(images).to(images)
    top = (first <= exposure)[:, None]
    return torch.where(top if keeps == "top" else ~top, images, colour.to(images).view(1, 3, 1, 1))
