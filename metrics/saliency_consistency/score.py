"""Test whether the map of a rotated, shifted or mirrored image is the original map, changed in the same way."""

from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from saliency_bench.compute.maps.map_provider import MapProvider
from saliency_bench.compute.scoring.transforms import TRANSFORMS, Choice, Transform
from saliency_bench.declarations import metric
from saliency_bench.errors import UserError
from saliency_bench.maps import is_flat, normalise
from saliency_bench.metrics._papers import ANONYMOUS_2020
from saliency_bench.registry import install_hint
from saliency_bench.target_weights import activation_of, no_probabilities
from saliency_bench.types import Images, Target
from saliency_bench.utils.untouched import untouched


def parts(options: dict, classifier: object) -> list[str]:
    """Return the names of the transforms; the score is the mean over them."""
    return list(chosen_transforms(options["transform"]))


def check(*, radius: int, **others: object) -> None:
    """Raise UserError if an option is out of range."""
    if radius < 1:
        raise UserError(f"radius={radius} of saliency_consistency must be at least 1")


def passes(options: dict, height: int, width: int) -> tuple[int, int]:
    """Return the maximum numbers of pictures to classify and of additional maps, per image."""
    return len(chosen_transforms(options["transform"])), len(chosen_transforms(options["transform"]))


@metric(
    version=1,
    title="Consistency",
    higher_is_better=False,
    range=(0, float("inf")),
    paper=ANONYMOUS_2020,
    undefined="no transform keeps the prediction",
    parts=parts,
    absent="this transform changes the prediction or leaves no pixels to compare",
    passes=passes,
    check=check,
)
def saliency_consistency(
    maps: np.ndarray,
    images: Images,
    target: Target,
    logits: Tensor,
    classifier: nn.Module,
    explain: MapProvider,
    *,
    transform: Choice = "all",
    region: Literal["common", "frame"] = "common",
    radius: int = 1,
    series: Literal["rows", "columns", "vectors"] = "rows",
) -> np.ndarray:
    """Return the time-warping distances between a map and the back-transformed maps of transformed images.

        score = mean over transforms t of FastDTW(s(E(x)), s(t^-1(E(t(x)))))

    The mean is over the transforms that keep the predicted class. The paper describes the score in sections 3.2.2 and
    A.4. s reads the pixels of the map that stay inside the frame after t, row by row. The values are min-max scaled and
    then divided by their sum; a constant series becomes uniform. FastDTW (Salvador and Chan, 2007) uses radius 1 and
    absolute differences of single values, like the library fastdtw for 1-D series. The paper does not specify the
    region, the radius or the conversion of a map to a series, so these are options.

    Args:
        maps: Maps E(x) of shape (B, H, W).
        images: Images of shape (B, 3, H, W) with values in [0, 1].
        target: Target of the maps, of shape (B, K).
        logits: Logits of the classifier for these images, of shape (B, K).
        classifier: Network that the maps explain.
        explain: Function that computes the maps of the transformed images.
        transform: Transform to apply: "all", or one of the following. "right", "left", "down", "up": shift by 0.2 of
            the width or height, rounded to whole pixels. "rotate-15", "rotate-10", "rotate-5", "rotate+5", "rotate+10",
            "rotate+15": bilinear rotation in degrees, counter-clockwise. "flip_horizontal", "flip_vertical": mirroring.
            New pixels at the border are black.
        region: Pixels that are compared. "common": pixels that stay inside the frame after t. "frame": all pixels.
            Pixels cut off by t are 0 in the back-transformed map, so even a map that moves exactly with the image has a
            distance above 0.
        radius: Radius of FastDTW, at least 1: the number of cells by which a path may deviate from the coarser path.
        series: Conversion of a map to a series. "rows": pixels row by row. "columns": pixels column by column.
            "vectors": rows of pixels as vectors, compared by the sum of absolute differences. Pixels outside the region
            are 0, and rows without pixels inside the region are skipped.

    Returns:
        Distances under each transform, float64 (B, P), at least 0; lower is better. The score is their mean. A distance
        is NaN if the prediction changes, if both series are constant, or if the classifier returns NaN for the image.
        It is also NaN for a constant map, which would otherwise have the best possible score.

    Raises:
        UserError: The transform is unknown, the radius is below 1, or numba, which compiles FastDTW, is not installed.

    Example:
        The 4 x 4 map of every image, including the mirrored image, marks the upper left corner. The map of the mirrored
        image, mirrored back, marks the upper right corner. The series, row by row and with a sum of 1, are:

            1 0 0 0     0 0 0 1     FastDTW aligns the ends of the series, so the 1 of the first series
            0 0 0 0     0 0 0 0     costs 1 and the 1 of the second series costs 1:
            0 0 0 0     0 0 0 0     transform="flip_horizontal" gives 2.
            0 0 0 0     0 0 0 0
    """
    check(radius=radius)
    chosen = chosen_transforms(transform)
    distances = np.full((len(maps), len(chosen)), np.nan)
    activation = activation_of(classifier)
    predicted, ranked = _predicted(logits.cpu()), ~is_flat(maps) & ~no_probabilities(logits, activation)
    for column, way in enumerate(chosen.values()):
        changed = way.there(images)
        with untouched(classifier), torch.no_grad():
            outputs = classifier(changed).cpu()
        stays = (_predicted(outputs) == predicted).numpy() & ~no_probabilities(outputs, activation)
        kept = np.flatnonzero(stays & ranked)
        if len(kept):
            there = torch.from_numpy(explain(changed[kept], target[kept], kept.tolist()))
            back = way.back(there[:, None])[:, 0].numpy()
            inside = way.region(*maps.shape[1:]).numpy() if region == "common" else np.ones(maps.shape[1:], dtype=bool)
            for index, here, there in zip(kept, maps[kept], back, strict=True):
                distances[index, column] = distance(here, there, inside, radius, series)
    return distances


def _predicted(logits: torch.Tensor) -> torch.Tensor:
    """Return the class with the highest logit (B,), or for a single logit whether its probability is above 1/2."""
    return logits.argmax(dim=1) if logits.shape[1] > 1 else logits[:, 0] > 0


def chosen_transforms(transform: str) -> dict[str, Transform]:
    """Return {name: transform} with the chosen transform, or with all transforms for "all"."""
    return TRANSFORMS if transform == "all" else {transform: TRANSFORMS[transform]}


def distance(first: np.ndarray, second: np.ndarray, inside: np.ndarray, radius: int = 1, series: str = "rows") -> float:
    """Return the FastDTW distance of two maps (H, W), or NaN if the region is empty or both maps are constant."""
    try:
        from saliency_bench.metrics.saliency_consistency.warping import fastdtw
    except ModuleNotFoundError as error:
        raise UserError(f"saliency_consistency needs numba: {install_hint('consistency')}") from error
    if not inside.any() or np.ptp(first[inside]) == np.ptp(second[inside]) == 0:
        return float("nan")
    return fastdtw(series_of(first, inside, series), series_of(second, inside, series), radius)[0]


def series_of(values: np.ndarray, inside: np.ndarray, series: str) -> np.ndarray:
    """Return the values inside, min-max scaled and divided by their sum: float64 (N,), or (N, W) for "vectors"."""
    if series == "columns":
        return shares(values.T[inside.T])
    if series == "rows":
        return shares(values[inside])
    placed = np.zeros(values.shape)
    placed[inside] = shares(values[inside])
    return placed[inside.any(axis=1)]


def shares(values: np.ndarray) -> np.ndarray:
    """Return the values min-max scaled and divided by their sum, float64 (N,), or equal values if they are constant."""
    normal = normalise(values.astype(np.float64).reshape(1, 1, -1)).ravel()
    return normal / normal.sum() if normal.any() else np.full(len(normal), 1 / len(normal))
