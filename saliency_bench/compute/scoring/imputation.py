"""Impute missing pixels as the weighted mean of their neighbours, by solving one sparse linear system per picture."""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from scipy.sparse import csc_array
from scipy.sparse.linalg import splu
from torch import Tensor

from saliency_bench.types import Images
from saliency_bench.utils.seeds import normal, seed_of

# {(down, right): weight}, in twelfths of the sum of weights inside the frame.
NEIGHBOURS = {(0, 1): 2, (0, -1): 2, (1, 0): 2, (-1, 0): 2, (1, 1): 1, (1, -1): 1, (-1, 1): 1, (-1, -1): 1}
NOISE = 0.01  # standard deviation


def imputed(images: Images, kept: Tensor, noise: Images | float = 0.0) -> Images:
    """Impute the missing pixels of images from the kept pixels, Bool (B, 1, H, W), and add noise to them.

    This is noisy linear imputation (Rong et al., 2022): each missing pixel is the weighted mean of its neighbours
    inside the image (weight 1/6 for direct and 1/12 for diagonal neighbours). Neighbours may also be missing, so the
    missing values solve one linear system. If no pixel is kept, the image is black.
    """
    pictures = torch.broadcast_to(images, (len(kept), *images.shape[1:])).double().cpu().numpy()
    masks = kept[:, 0].cpu().numpy()
    filled = [_imputed(*pair) for pair in zip(pictures, masks, strict=True)]
    return torch.where(kept, images, torch.from_numpy(np.stack(filled)).to(images) + noise)


def slight_noise(images: Images, seeds: Sequence[int]) -> Images:
    """Return normal noise with mean 0 and standard deviation `NOISE`. It is drawn with each image's seed."""
    drawn = [normal(seed_of(seed, "linear"), image.numel()) for seed, image in zip(seeds, images, strict=True)]
    return NOISE * torch.from_numpy(np.stack(drawn)).view(images.shape).to(images)


def _imputed(image: np.ndarray, kept: np.ndarray) -> np.ndarray:
    """Impute all pixels of an image (C, H, W) outside `kept`, Bool (H, W). The result is float64."""
    missing = ~kept
    filled = np.where(kept, image, 0)
    if kept.any() and missing.any():
        filled[:, missing] = _solved(filled, missing).T
    return filled


def _solved(known: np.ndarray, missing: np.ndarray) -> np.ndarray:
    """Return the values of the n missing pixels, (n, C), row by row. `known` (C, H, W) is 0 at these pixels.

    The equation of a missing pixel x is (sum of weights) x - sum of weights times missing neighbours = sum of weights
    times known neighbours.
    """
    numbers = np.cumsum(missing).reshape(missing.shape) - 1
    weights, sums = np.zeros(missing.shape), np.zeros(known.shape)
    rows, columns, entries = [], [], []
    for weight, here, there in _neighbours(*missing.shape):
        weights[here] += weight
        sums[(slice(None), *here)] += weight * known[(slice(None), *there)]
        pairs = missing[here] & missing[there]
        rows.append(numbers[here][pairs])
        columns.append(numbers[there][pairs])
        entries.append(np.full(len(rows[-1]), -float(weight)))
    diagonal = np.arange(missing.sum())
    indices = np.concatenate([*rows, diagonal]), np.concatenate([*columns, diagonal])
    matrix = csc_array((np.concatenate([*entries, weights[missing]]), indices), shape=(len(diagonal),) * 2)
    # The matrix is symmetric and diagonally dominant, so use a symmetric elimination order without pivoting.
    factors = splu(matrix, permc_spec="MMD_AT_PLUS_A", diag_pivot_thresh=0, options={"SymmetricMode": True})
    return factors.solve(np.ascontiguousarray(sums[:, missing].T))


def _neighbours(height: int, width: int) -> Iterator[tuple[int, tuple[slice, slice], tuple[slice, slice]]]:
    """Yield, for each direction, (weight, slices of the pixels that have a neighbour, slices of these neighbours)."""
    for (down, right), weight in NEIGHBOURS.items():
        (rows, below), (columns, beside) = _shifted(down, height), _shifted(right, width)
        yield weight, (rows, columns), (below, beside)


def _shifted(step: int, length: int) -> tuple[slice, slice]:
    """Return (positions with a neighbour inside the image at this step, positions of these neighbours)."""
    start, stop = max(0, -step), length - max(0, step)
    return slice(start, stop), slice(start + step, stop + step)
