"""Validate and normalise saliency maps for metrics, and put their pixels in order. Only numpy is needed.

Pixels are ordered by their exact values, and a fixed permutation orders equal values. Pixels that are equal in theory
must therefore have exactly the same value. `data.geometry.enlarge` ensures this for upsampled maps.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from typing import Any

import numpy as np

from saliency_bench.utils.mask_values import in_words, unclear
from saliency_bench.utils.seeds import random_bits, seed_of

TIED_SHARE = 0.1  # a score computed from ranks gets a remark if more than this share of a map's pixels is tied

# (height, width) of the small maps upsampled inside a `noted_sizes` block; None outside of such a block
_small: ContextVar[list[tuple[int, int]] | None] = ContextVar("small", default=None)


@contextmanager
def noted_sizes() -> Iterator[list[tuple[int, int]]]:
    """Yield a list. The size of each small map that is upsampled inside this context is appended to it."""
    sizes: list[tuple[int, int]] = []
    token = _small.set(sizes)
    try:
        yield sizes
    finally:
        _small.reset(token)


def note_size(height: int, width: int) -> None:
    """Record the size of small maps that are about to be upsampled."""
    if (sizes := _small.get()) is not None:
        sizes.append((height, width))


def read_maps(maps: Any) -> np.ndarray:
    """Convert arrays, lists or tensors of maps to float32 (B, H, W). A single map (H, W) becomes a batch of one.

    Raises:
        ValueError: The number of axes is wrong, or a map is empty, has NaN or infinite values, or becomes constant in
            float32.
    """
    given = read_array("maps", maps)
    with np.errstate(over="ignore"):  # values beyond float32 become infinite, which is checked below
        array = given.astype(np.float32, copy=False)
    given, array = (given[None], array[None]) if array.ndim == 2 else (given, array)
    if array.ndim != 3 or 0 in array.shape[1:]:
        raise ValueError(f"maps must have shape (B, H, W); got {array.shape}")
    finite = np.isfinite(array).all(axis=(1, 2))
    if not finite.all():
        raise ValueError(f"map {int(np.argmin(finite))} contains NaN or infinite values; a map must be finite")
    if given.itemsize > 4 and len(array) and (lost := is_flat(array) & ~is_flat(given)).any():
        raise ValueError(f"map {int(np.argmax(lost))} becomes constant in float32; rescale its values")
    return array


def read_masks(masks: Any) -> np.ndarray:
    """Convert arrays, lists or tensors of masks to bool (B, H, W).

    Masks contain 0 and one other value (1, 255 or True).

    Raises:
        ValueError: The number of axes is wrong, or the values do not separate the object from the background.
    """
    masks = [_indices(mask) for mask in masks] if isinstance(masks, Sequence) else _indices(masks)
    array = read_array("masks", masks)
    array = array[None] if array.ndim == 2 else array
    if array.ndim != 3:
        raise ValueError(f"masks must have shape (B, H, W); got {array.shape}")
    if array.dtype == bool:
        return array
    if reason := unclear(array):
        values = in_words(np.unique(array))
        raise ValueError(
            "masks must be binary: 0 outside, one other value (1 or 255) inside; these masks have "
            f"{reason} ({values}); pass a comparison, such as masks == 1"
        )
    return array != 0


def _indices(mask: Any) -> Any:
    """Return the indices of a palette image, with the index of black changed to 0. Return other masks unchanged."""
    if getattr(mask, "mode", None) != "P":
        return mask
    indices, colours = np.asarray(mask), np.asarray(mask.convert("RGB"))
    black = np.unique(indices[~colours.any(-1)])
    if len(black) != 1:
        return indices
    return np.where(indices == black, 0, np.where(indices == 0, black, indices))


def read_pair(maps: Any, masks: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return (maps, masks), converted by `read_maps` and `read_masks`.

    Raises:
        ValueError: Maps or masks are invalid, or their shapes differ.
    """
    values, inside = read_maps(maps), read_masks(masks)
    if values.shape != inside.shape:
        raise ValueError(
            f"maps have shape {values.shape} but masks have shape {inside.shape}; the shapes must be equal"
        )
    return values, inside


def read_array(name: str, values: Any, shape: str = "(B, H, W)") -> np.ndarray:
    """Convert an array, a tensor, or a list of arrays, tensors or numbers to a single array.

    Args:
        name: Name of the values in messages.
        values: Numbers.
        shape: Expected shape, which messages mention.

    Raises:
        ValueError: The values are not real numbers, or the arrays differ in size.
    """
    if isinstance(values, list | tuple):
        values = [read_array(name, item, shape) if hasattr(item, "detach") else item for item in values]
    try:
        if hasattr(values, "detach"):  # a tensor, without importing torch; numpy has no bfloat16
            values = values.detach().cpu().resolve_neg()
            values = values.float() if values.is_floating_point() and values.element_size() < 4 else values
        array = np.asarray(values)
        if array.dtype.kind not in "biuf" and values is not None:
            raise TypeError(f"{array.dtype} is not a real number type")
        return array
    except (ValueError, TypeError, RuntimeError) as error:  # RuntimeError: a meta, sparse or quantised tensor
        raise ValueError(
            f"{name} must be real numbers of shape {shape}, and all arrays must have the same size"
        ) from error


def is_flat(maps: np.ndarray) -> np.ndarray:
    """Return whether each map is constant, bool (B,)."""
    return maps.max(axis=(1, 2)) == maps.min(axis=(1, 2))


def normalise(maps: np.ndarray) -> np.ndarray:
    """Scale each map to [0, 1], based on its minimum and maximum. A constant map becomes all zeros."""
    low = maps.min(axis=(1, 2), keepdims=True)
    with np.errstate(over="ignore"):
        span = maps.max(axis=(1, 2), keepdims=True) - low
    # Use float64 if the span overflows in float32.
    if not np.isfinite(span).all():
        return normalise(maps.astype(np.float64)).astype(maps.dtype)
    return (maps - low) / np.where(span > 0, span, 1)


@lru_cache(maxsize=16)
def tie_breaker(height: int, width: int) -> np.ndarray:
    """Return a pseudo-random permutation of H*W pixels, which orders tied values.

    All maps of this size get the same permutation.
    """
    bits = random_bits(seed_of("tie", height, width), height * width)
    permutation = np.argsort(bits, kind="stable")
    permutation.setflags(write=False)
    return permutation


def tied_share(maps: np.ndarray) -> np.ndarray:
    """Return the fraction of tied pixels in each map, float (B,).

    The fraction is 1 - (number of distinct values) / (H W). The values of tied pixels do not determine their order.
    """
    ordered = np.sort(maps.reshape(len(maps), -1), axis=1)
    return (ordered[:, 1:] == ordered[:, :-1]).sum(axis=1) / ordered.shape[1]


def is_tied(maps: np.ndarray) -> np.ndarray:
    """Return, for each map, whether more than `TIED_SHARE` of its pixels are tied, bool (B,).

    A constant map does not count as tied.
    """
    return (tied_share(maps) > TIED_SHARE) & ~is_flat(maps)


def reliability(even: np.ndarray, odd: np.ndarray) -> np.ndarray:
    """Estimate the reliability of maps that average random draws, from the maps of two halves of the draws.

        reliability = 2 r / (1 + r),    r = Pearson correlation between the two halves, over pixels

    This is the formula of Spearman and Brown (1910). The reliability is the expected correlation between the map that
    averages all draws and a map that averages the same number of new draws. It is also the fraction of the map's
    variance that is not noise.

    Args:
        even: Maps averaged over one half of the draws, of shape (B, H, W).
        odd: Maps averaged over the other half, of shape (B, H, W).

    Returns:
        Reliabilities in [0, 1], float64 (B,): 0 if the halves have a negative correlation, and NaN if a half is
        constant.
    """
    rows = [maps.reshape(len(maps), -1).astype(np.float64) for maps in (even, odd)]
    centred = [values - values.mean(axis=1, keepdims=True) for values in rows]
    # Scale first, because squares of tiny or huge values could underflow or overflow.
    sizes = [np.abs(values).max(axis=1, keepdims=True) for values in centred]
    first, second = (values / np.where(size > 0, size, 1) for values, size in zip(centred, sizes, strict=True))
    lengths = np.sqrt((first**2).sum(axis=1) * (second**2).sum(axis=1))
    constant = is_flat(even) | is_flat(odd)
    with np.errstate(invalid="ignore"):  # for maps that are not finite
        r = np.clip((first * second).sum(axis=1) / np.where(constant, 1, lengths), 0, 1)
    return np.where(constant, np.nan, 2 * r / (1 + r))


def descending(maps: np.ndarray) -> np.ndarray:
    """Return pixel indices from the highest to the lowest value, int (B, H*W). Ties are ordered by `tie_breaker`."""
    permutation = tie_breaker(*maps.shape[1:])
    shuffled = maps.reshape(len(maps), -1)[:, permutation]
    return permutation[np.argsort(-shuffled, axis=1, kind="stable")]


def top_pixels(maps: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Return the first counts[i] pixels of map i in the order of `descending`, bool (B, H, W).

    The pixels are found by partitioning, which takes linear time. The tie-breaker chooses among the pixels with the
    lowest selected value.
    """
    chosen = np.zeros(maps.shape, dtype=bool)
    permutation = tie_breaker(*maps.shape[1:])
    flat = zip(maps.reshape(len(maps), -1), chosen.reshape(len(maps), -1), counts, strict=True)
    for values, picked, count in flat:
        if count == 0:
            continue
        lowest = np.partition(values, -count)[-count]
        np.greater(values, lowest, out=picked)
        room = count - np.count_nonzero(picked)
        tied = values == lowest
        picked |= tied
        if np.count_nonzero(tied) > room:
            picked[permutation[tied[permutation]][room:]] = False
    return chosen


def score_regions(
    score: Callable[[np.ndarray, np.ndarray], np.ndarray],
    maps: Any,
    masks: Any,
    thresholds: Sequence[float | str],
    *,
    normalised: bool = True,
) -> np.ndarray:
    """Score the salient pixels of each map against its mask, at each threshold.

    Args:
        score: Function of the salient pixels and the mask, both bool (B, H, W), that returns scores (B,).
        maps: Maps of shape (B, H, W).
        masks: Masks of shape (B, H, W).
        thresholds: Pixels whose value exceeds the threshold are salient. With "mask_area", the top n pixels of the map
            are salient, where n is the number of pixels in the mask.
        normalised: Whether to scale each map to [0, 1] first.

    Returns:
        Scores at T thresholds, float64 (B, T); NaN for an empty mask.

    Raises:
        ValueError: Maps, masks or a threshold are invalid (`read_pair`, `check_threshold`).
    """
    for threshold in thresholds:
        check_threshold(threshold=threshold, normalise=normalised)
    values, inside = read_pair(maps, masks)
    values = normalise(values) if normalised else values
    columns = [score(salient(values, inside, threshold), inside) for threshold in thresholds]
    scores = np.stack(columns, axis=1) if columns else np.empty((len(values), 0))
    scores[~inside.any(axis=(1, 2))] = np.nan
    return scores


def salient(values: np.ndarray, inside: np.ndarray, threshold: float | str) -> np.ndarray:
    """Return the salient pixels, bool (B, H, W).

    These are the pixels above the threshold, or, with "mask_area", as many top pixels as the mask contains.
    """
    if isinstance(threshold, str):
        return top_pixels(values, np.count_nonzero(inside, axis=(1, 2)))
    return values > float(threshold)


def check_threshold(*, threshold: Any, normalise: bool) -> None:
    """Raise ValueError unless a threshold is "mask_area" or a number.

    If maps are normalised, it must be within [0, 1].
    """
    if isinstance(threshold, str) and threshold == "mask_area":
        return
    if isinstance(threshold, bool) or not isinstance(threshold, int | float | np.number):
        raise ValueError(f"threshold must be a number or 'mask_area'; got {threshold!r}")
    if not (0 <= threshold <= 1 if normalise else np.isfinite(threshold)):
        raise ValueError(f"threshold must be in [0, 1] unless normalise=False; got {threshold}")


def mean_of_parts(values: np.ndarray, options: object = None) -> np.ndarray:
    """Return the mean (B,) of the parts (B, P) that are not NaN, or NaN if all are NaN.

    This is the default reduction of a metric's parts. It ignores `options`, which other reductions use.
    """
    defined = ~np.isnan(values)
    return np.where(defined, values, 0).sum(axis=1) / np.where(defined.any(axis=1), defined.sum(axis=1), np.nan)
