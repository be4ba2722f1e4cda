"""Test whether a map ranks the patches of an image in the same order as the classifier."""

import numpy as np
import torch
from torch import Tensor

from saliency_bench.compute.scoring.perturbation import Curves, Reference
from saliency_bench.declarations import metric
from saliency_bench.errors import UserError
from saliency_bench.metrics._papers import HESSE_2024
from saliency_bench.metrics._ranks import levels, spearman
from saliency_bench.types import Images


def marked(curves: Curves, *, grid: int = 4, reference: Reference = "mean") -> np.ndarray:
    """Return whether all patches of an image have equal sums or equal drops, bool (B,)."""
    patches = _patches(curves, grid)
    sums, without = _sums(curves, patches, grid), levels(_without(curves, patches, grid, reference))
    return (sums.max(axis=1) == 0) | (without.max(axis=1) == 0)


def check(*, grid: int, **others: object) -> None:
    """Raise UserError if an option is out of range."""
    if isinstance(grid, bool) or not isinstance(grid, int) or grid < 2:
        raise UserError(f"grid={grid!r} of saliency_single_deletion must be a whole number of patches, at least 2")


@metric(
    version=2,
    title="Ranking of parts",
    higher_is_better=True,
    range=(-1, 1),
    paper=HESSE_2024,
    mark="there is no correlation, because all patches have equal sums or equal drops",
    marked=marked,
    passes=lambda options, *_: (options["grid"] ** 2, 0),
    check=check,
    also_called=("IDSDS", "in-domain single deletion score", "single deletion"),
)
def saliency_single_deletion(curves: Curves, *, grid: int = 4, reference: Reference = "mean") -> np.ndarray:
    """Return the Spearman correlation of the map's sum in each patch with the logit's drop when that patch is removed.

        score = spearman(sum over patch of map,  z(image) - z(image without patch)),    z = sum_k w_k logit_k

    The image has grid x grid patches, and w are the weights of the target. If the target is one class, z is its logit.
    Only one patch is removed at a time, so pictures stay close to the classifier's training data. The map is not
    normalised, and negative values are included.

    Ranks are 1 to grid^2. Patches that differ only by rounding share the mean of their ranks: two sums count as equal
    if they differ by at most 1e-6 of the sum of absolute values, and two logits if they differ by at most 1e-6 of the
    largest logit.

    The authors first fine-tune their classifiers on images with missing patches, so that pictures with a deleted patch
    are in the training domain. Scores of a classifier without this fine-tuning cannot be compared with theirs.

    Args:
        curves: `perturbation.Curves` of the images, the target and the maps.
        grid: Number of patches along a side, at least 2. Patch sizes differ by one pixel if a side of the image is not
            divisible by this number.
        reference: Values that replace the patch. "black": 0, for images in [0, 1]. "mean": the classifier's
            normalisation mean, which is zero after normalisation. "blur": the image blurred by a Gaussian of 11 x 11
            pixels with sigma 5. "noise": uniform noise in [0, 1). "inpaint": values filled in from the kept pixels.
            "linear": linear imputation from the kept pixels (ROAD). "farthest": 0 or 1, whichever is farther from the
            pixel's value. "gaussian": normal noise around the pixel's value, truncated to [0, 1]. "farthest" and
            "gaussian" are from Sturmfels et al. (2020).

    Returns:
        Scores in [-1, 1], float64 (B,); higher is better. The score is 0 if the correlation is undefined because all
        patches have equal sums or equal drops; a run reports the number of such samples.

    Raises:
        UserError: The grid has fewer than 2 patches per side, or more patches than pixels.

    Example:
        Take a white 4 x 4 image, grid=2, and a classifier whose logit is the sum of the fractions of white in the four
        patches, weighted by 3, 2, 1 and 0:

            patch                 upper left   upper right   lower left   lower right
            sum of the map                 8             9            1             0
            drop                           3             2            1             0
            ranks               3 4 2 1 and 4 3 2 1:  1 - 6 (1 + 1) / (4 (16 - 1)) = 0.8

        >>> import torch
        >>> class Weighted(torch.nn.Module):
        ...     def forward(self, images):
        ...         shares = torch.nn.functional.avg_pool2d(images.mean(1, keepdim=True), 2).flatten(1)
        ...         return torch.stack([shares @ torch.tensor([3.0, 2.0, 1.0, 0.0]), shares[:, 0] * 0], 1)
        >>> maps = torch.tensor([[[8.0, 0, 9, 0], [0, 0, 0, 0], [1, 0, 0, 0], [0, 0, 0, 0]]])
        >>> curves = Curves(Weighted(), torch.ones(1, 3, 4, 4), torch.tensor([[1.0, 0.0]]), maps)
        >>> saliency_single_deletion(curves, grid=2, reference="black").round(4).tolist()
        [0.8]
    """
    patches = _patches(curves, grid)
    without = _without(curves, patches, grid, reference)
    # A drop is the whole image's logit minus this logit. The ranks of drops are the reversed ranks of the logits.
    scores = spearman(_sums(curves, patches, grid), -levels(without))
    return np.where(np.isnan(without).any(axis=1), np.nan, scores)


def _patches(curves: Curves, grid: int) -> np.ndarray:
    """Return the index of each pixel's patch, counted row by row, int (H, W).

    Raises:
        UserError: The grid is invalid or finer than the image.
    """
    check(grid=grid)
    if grid > min(curves.height, curves.width):
        raise UserError(f"grid={grid} of saliency_single_deletion is finer than the image; use fewer patches")
    rows, columns = (np.arange(side) * grid // side for side in (curves.height, curves.width))
    return rows[:, None] * grid + columns


def _sums(curves: Curves, patches: np.ndarray, grid: int) -> np.ndarray:
    """Return the sum of each map over each patch as `levels`, int (B, grid^2)."""
    maps = curves.maps.reshape(len(curves.maps), -1).astype(np.float64)
    sums, sizes = (
        np.stack([np.bincount(patches.ravel(), values, grid**2) for values in numbers])
        for numbers in (maps, np.abs(maps))
    )
    return levels(sums, sizes)


def _without(curves: Curves, patches: np.ndarray, grid: int, reference: Reference) -> np.ndarray:
    """Return z of each image without each of its patches, float64 (B, grid^2)."""
    of_pixel = torch.from_numpy(patches).to(curves.images.device)

    def draw(samples: Tensor, pictures: Tensor) -> Images:
        """Return the images, each without one patch."""
        return curves.drawn(samples, (of_pixel != pictures[:, None, None])[:, None], reference)

    return curves.logits(("without a patch", grid, reference), grid**2, draw)
