"""Test whether the map of a turned, shifted or mirrored image is the map turned, shifted or mirrored."""

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
        raise UserError(f"radius={radius} of saliency_consistency must be 1 or more")


def passes(options: dict, height: int, width: int) -> tuple[int, int]:
    """Return the largest number of (pictures to classify, further maps to compute) per image."""
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
    """Return the time-warping distances of a map and the back-transformed maps of transformed images (P4 3.2.2).

        score = mean over transforms t of FastDTW(s(E(x)), s(t^-1(E(t(x)))))

    (see also P4 A.4) over the transforms that keep the predicted class. s reads the pixels of the map that stay inside
    the frame after t, row by row; min-max, then divided by the sum (a constant series becomes uniform). FastDTW
    (Salvador and Chan, 2007) has radius 1 and absolute differences of single values, like the library fastdtw for 1-D
    series. The paper specifies neither the region, the radius nor how a map becomes a series, so these are options.

    Args:
        maps: (B, H, W), E(x).
        images: (B, 3, H, W) in [0, 1].
        target: (B, K), target of the maps.
        logits: (B, K), the classifier's logits for these images.
        classifier: the network that the maps explain.
        explain: makes the maps of the transformed images.
        transform: "all", or one of "right", "left", "down", "up" (by 0.2 of the width or height, rounded to whole
            pixels), "rotate-15", "rotate-10", "rotate-5", "rotate+5", "rotate+10", "rotate+15" (degrees,
            counter-clockwise, bilinear), "flip_horizontal", "flip_vertical". Images are filled with black.
        region: "common": the pixels that stay inside the frame after t. "frame": all pixels; pixels that t has cut off
            are 0 in the back-transformed map, so even a map that moves exactly with the image has a distance.
        radius: radius of FastDTW, at least 1: how far a path may deviate from the path of the coarser pair.
        series: "rows": the pixels row by row. "columns": column by column. "vectors": the rows of pixels as vectors,
            compared by the sum of absolute differences; pixels outside the region are 0, rows without any left out.

    Returns:
        Float64 (B, P): the distance under each transform, 0 or more, lower is better; their mean is the score. NaN if
        the prediction changes or both series are constant, for a constant map, which would be the best possible and is
        not ranked, and for an image for which the classifier gives NaN.

    Raises:
        UserError: The transform is unknown, the radius is below 1, or numba, which compiles FastDTW, is not installed.

    Example:
        A 4 x 4 map that always marks the upper left corner, also of the mirrored image. Mirrored back, it marks the
        upper right corner. Row by row, with a sum of 1:

            1 0 0 0     0 0 0 1     Ends are aligned with ends, so the 1 at the beginning of the first series
            0 0 0 0     0 0 0 0     costs 1 and the 1 of the second one costs 1:
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
    """Return the class with the highest logit (B,); for a single logit, whether its probability is above 1/2."""
    return logits.argmax(dim=1) if logits.shape[1] > 1 else logits[:, 0] > 0


def chosen_transforms(transform: str) -> dict[str, Transform]:
    """Return {name: transform} of one transform, or of all for "all"."""
    return TRANSFORMS if transform == "all" else {transform: TRANSFORMS[transform]}


def distance(first: np.ndarray, second: np.ndarray, inside: np.ndarray, radius: int = 1, series: str = "rows") -> float:
    """Return FastDTW of two maps (H, W) on the pixels `inside`; NaN if both are constant or no pixel is inside."""
    try:
        from saliency_bench.metrics.saliency_consistency.warping import fastdtw
    except ModuleNotFoundError as error:
        raise UserError(f"saliency_consistency needs numba: {install_hint('consistency')}") from error
    if not inside.any() or np.ptp(first[inside]) == np.ptp(second[inside]) == 0:
        return float("nan")
    return fastdtw(series_of(first, inside, series), series_of(second, inside, series), radius)[0]


def series_of(values: np.ndarray, inside: np.ndarray, series: str) -> np.ndarray:
    """Return the values inside, min-max and divided by their sum: Float64 (N,), or (N, W) for "vectors"."""
    if series == "columns":
        return shares(values.T[inside.T])
    if series == "rows":
        return shares(values[inside])
    placed = np.zeros(values.shape)
    placed[inside] = shares(values[inside])
    return placed[inside.any(axis=1)]


def shares(values: np.ndarray) -> np.ndarray:
    """Return values min-max and divided by their sum, Float64 (N,); uniform if they are constant."""
    normal = normalise(values.astype(np.float64).reshape(1, 1, -1)).ravel()
    return normal / normal.sum() if normal.any() else np.full(len(normal), 1 / len(normal))
