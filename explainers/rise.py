"""RISE (Petsiuk et al., 2018): mean of random masks, each weighted by the score of the masked image.

    map = 1 / (N p) * sum_i score(x * M_i) M_i

M_i starts as a square grid of zeros and ones with `cells` cells per side; each cell is one with probability p. The grid
is upsampled bilinearly to the size of (cells + 1) cells and cropped to the size of the image at a random shift of less
than one cell. Beyond the centres of its outer cells, the grid is extended with the values of these cells. The authors'
code reflects the grid instead (`border=reflect`); this changes 7 % of the pixels for masks of 7 x 7 cells. As in the
authors' code, masked pixels of the image become zero after normalisation. Li et al. (2020) evaluate the method in
section 2.2.2.

The same bank of N masks, which depends on the run's seed, is used for every image. Each pass recreates its masks from
their cells and shifts on the device, so memory does not grow with N. The score is a probability by default. With
`reliability`, an image uses only as many masks as its map needs (`_draws`).
"""

from functools import lru_cache
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from saliency_bench.compute.classifiers.classifier import Classifier
from saliency_bench.compute.classifiers.passes import pictures_per_pass, scores_of
from saliency_bench.declarations import explainer
from saliency_bench.errors import UserError
from saliency_bench.explainers._checks import check_batch_size, check_reliability
from saliency_bench.explainers._draws import averaged
from saliency_bench.types import Averaged, Images, Maps, On, Target
from saliency_bench.utils.seeds import random_bits, seed_of, uniform

Border = Literal["replicate", "reflect"]


def check(*, masks: int, cells: int, p: float, reliability: float | None = None, batch_size: int | None = None,
          **others: object) -> None:  # fmt: skip
    """Raise UserError if an option is out of range."""
    check_batch_size("rise", batch_size)
    check_reliability("rise", reliability)
    if masks < 1 or cells < 1 or not 0 < p <= 1:
        raise UserError(f"rise needs masks >= 1, cells >= 1 and 0 < p <= 1; got {masks=}, {cells=} and {p=}")


@explainer(version=3, needs="outputs", passes=lambda options, *_: options["masks"], check=check)
def rise(
    classifier: Classifier,
    images: Images,
    target: Target,
    *,
    masks: int = 4000,
    cells: int = 7,
    p: float = 0.5,
    border: Border = "replicate",
    on: On = "probability",
    seed: int | None = None,
    reliability: float | None = None,
    batch_size: int | None = None,
) -> Averaged:
    """Return the mean of random masks, each weighted by the score of the masked image.

    Args:
        classifier: Network to explain.
        images: Images of shape (B, 3, H, W) with values in [0, 1].
        target: Weights over the logits, of shape (B, K).
        masks: Number N of masks; with `reliability`, the maximum number per image.
        cells: Number of cells along each side of a mask's grid.
        p: Probability that a cell shows the image.
        border: Extension of a grid beyond the centres of its outer cells: "replicate", or "reflect" as published.
        on: Whether the target's weights apply to logits ("logit") or to probabilities ("probability").
        seed: Seed of the bank of masks. None: the run's seed, or 0 outside a run.
        reliability: Required reliability of each image's map, between 0 and 1; further masks are skipped once it is
            reached. None: use all masks.
        batch_size: Number of masks in memory and in one forward pass. None: for images of 224 x 224 pixels, 10 on a CPU
            and 256 on a GPU.

    Returns:
        Maps of shape (B, H, W) from all masks, from the even-numbered masks and from the odd-numbered masks. They are
        non-negative if all scores are non-negative.

    Raises:
        UserError: masks, cells or batch_size is below 1, p is not in (0, 1], or reliability is not between 0 and 1.
    """
    check(masks=masks, cells=cells, p=p, reliability=reliability, batch_size=batch_size)
    height, width = images.shape[2:]
    grids, rows, columns = bank(masks, cells, p, seed or 0, height, width, images.device)
    background = classifier.mean

    def masks_of(numbers: Tensor) -> Tensor:
        """Return the masks with these indices, (n, 1, H, W)."""
        return enlarge(grids[numbers], rows[numbers], columns[numbers], height, width, border)  # (n, 1, H, W)

    total, even = (images.new_zeros(len(images), height * width) for _ in range(2))

    def add(which: Tensor, start: int, end: int) -> None:
        """Add masks start to end - 1, weighted by the scores of the masked images."""
        subset = images[which]

        def seen(samples: Tensor, numbers: Tensor) -> Images:
            return background + masks_of(start + numbers) * (subset[samples] - background)

        scores = scores_of(classifier, subset, target[which], end - start, seen, on, batch_size)  # (b, end - start)
        for numbers in torch.arange(start, end, device=images.device).split(pictures_per_pass(images, batch_size)):
            mask = masks_of(numbers).flatten(1)
            for index in range(len(which)):  # the result of a matrix product would depend on the number of images
                image, score = which[index : index + 1], scores[index, numbers - start]
                total[image] += score @ mask
                even[image] += (score * (numbers % 2 == 0)) @ mask

    def read(which: Tensor, count: int) -> tuple[Maps, Maps, Maps]:
        """Return three sets of maps: from the first `count` masks, the even ones and the odd ones."""
        sums = total[which] / (count * p), even[which], total[which] - even[which]
        return sums[0].view(-1, height, width), sums[1].view(-1, height, width), sums[2].view(-1, height, width)

    return averaged(images, masks, reliability, add, read)


@lru_cache(maxsize=2)
def bank(
    masks: int, cells: int, p: float, seed: int, height: int, width: int, device: torch.device | str = "cpu"
) -> tuple[Tensor, Tensor, Tensor]:
    """Draw N grids (N, cells, cells) of 0 and 1, with shifts (N,) down and across. Shifts are smaller than one cell.

    The result is cached, so the bank is moved to the device once per run.
    """
    grids = uniform(seed_of(seed, "rise", "grid"), masks * cells * cells).reshape(masks, cells, cells) < p
    down, across = -(-height // cells), -(-width // cells)
    rows = random_bits(seed_of(seed, "rise", "rows"), masks) % np.uint64(down)
    columns = random_bits(seed_of(seed, "rise", "columns"), masks) % np.uint64(across)
    drawn = grids.astype(np.float32), rows.astype(np.int64), columns.astype(np.int64)
    on_device = [torch.from_numpy(values).to(device) for values in drawn]
    return on_device[0], on_device[1], on_device[2]


def enlarge(
    grids: Tensor, rows: Tensor, columns: Tensor, height: int, width: int, border: Border = "replicate"
) -> Tensor:
    """Upsample grids to masks (n, 1, H, W) in [0, 1].

    Bilinear upsampling is linear in the grid, so two small matrix products suffice.
    """
    cells, device = grids.shape[1], grids.device
    # (n, H, cells) and (n, W, cells)
    down = _interpolation(cells, height, border, device)[rows[:, None] + torch.arange(height, device=device)]
    across = _interpolation(cells, width, border, device)[columns[:, None] + torch.arange(width, device=device)]
    return (down @ grids @ across.transpose(1, 2)).unsqueeze(1)


@lru_cache(maxsize=4)
def _interpolation(cells: int, length: int, border: Border, device: torch.device) -> Tensor:
    """Return the interpolation weight of each cell at each position, ((cells + 1) * size, cells)."""
    size = -(-length // cells)
    table = F.interpolate(torch.eye(cells)[None], size=(cells + 1) * size, mode="linear", align_corners=False)[0].T
    if border == "reflect" and cells > 1:
        places = (torch.arange((cells + 1) * size) + 0.5) * cells / ((cells + 1) * size) - 0.5  # in units of cells
        for beyond, outer, inner in ((-places, 0, 1), (places - (cells - 1), -1, -2)):
            weight = beyond.clamp(min=0)
            table[:, outer] -= weight
            table[:, inner] += weight
    return table.to(device)
