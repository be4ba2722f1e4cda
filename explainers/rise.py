"""RISE (Petsiuk et al., 2018; P1 2.2.2): random masks, each weighted by the score of the image seen through it.

    map = 1 / (N p) * sum_i score(x * M_i) M_i

M_i is a grid of cells x cells zeros and ones (one with probability p), enlarged bilinearly to (cells + 1) cells' size
and cropped to the image at a random shift below one cell. Where a mask is 0 the image becomes zero after normalisation,
as in the authors' code. The same N masks serve every image (one bank per run seed); they are made again pass by pass
from their cells and shifts, so memory does not grow with N. On probabilities by default.
"""

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from saliency_bench.classifiers.classifier import Classifier
from saliency_bench.classifiers.fast_forward import fast_forward, pictures_per_pass
from saliency_bench.errors import UserError
from saliency_bench.explainers._checks import check_batch_size
from saliency_bench.target import score
from saliency_bench.types import Images, Maps, On, Target
from saliency_bench.utils.seeds import random_bits, seed_of, uniform

VERSION = 3
NEEDS = "outputs"


def rise(
    classifier: Classifier,
    images: Images,
    target: Target,
    *,
    masks: int = 4000,
    cells: int = 7,
    p: float = 0.5,
    on: On = "probability",
    seed: int | None = None,
    batch_size: int | None = None,
) -> Maps:
    """Maps (B, H, W), non-negative where the scores are. `seed`: of the mask bank; None: the run's, else 0.

    batch_size: masks in memory and in one pass; None: 10 of 224 x 224, 20 on a GPU.
    """
    check(masks=masks, cells=cells, p=p, batch_size=batch_size)
    height, width = images.shape[2:]
    grids, rows, columns = bank(masks, cells, p, seed or 0, height, width)
    background = classifier.mean
    total = images.new_zeros(len(images), height * width)
    step = pictures_per_pass(images, batch_size)
    with torch.no_grad():
        forward = fast_forward(classifier, images)
        for start in range(0, masks, step):
            part = slice(start, start + step)
            mask = enlarge(grids[part], rows[part], columns[part], height, width).to(images.device)  # (n, 1, H, W)
            for index, image in enumerate(images):
                seen = background + mask * (image - background)  # (n, 3, H, W)
                scores = score(forward(seen), target[index : index + 1], on, classifier)  # (n,)
                total[index] += scores @ mask.flatten(1)
    return (total / (masks * p)).view(-1, height, width)


def passes(options: dict, height: int, width: int) -> int:
    return options["masks"]


def check(*, masks: int, cells: int, p: float, batch_size: int | None = None, **others: object) -> None:
    check_batch_size("rise", batch_size)
    if masks < 1 or cells < 1 or not 0 < p <= 1:
        raise UserError(f"rise needs masks >= 1, cells >= 1 and 0 < p <= 1; got {masks}, {cells} and {p}")


def bank(masks: int, cells: int, p: float, seed: int, height: int, width: int) -> tuple[Tensor, np.ndarray, np.ndarray]:
    """Grids (N, cells, cells) of 0 and 1, and the shifts (N,) down and across, each below one cell's size."""
    grids = uniform(seed_of(seed, "rise", "grid"), masks * cells * cells).reshape(masks, cells, cells) < p
    down, across = -(-height // cells), -(-width // cells)
    rows = random_bits(seed_of(seed, "rise", "rows"), masks) % np.uint64(down)
    columns = random_bits(seed_of(seed, "rise", "columns"), masks) % np.uint64(across)
    return torch.from_numpy(grids).float(), rows.astype(np.int64), columns.astype(np.int64)


def enlarge(grids: Tensor, rows: np.ndarray, columns: np.ndarray, height: int, width: int) -> Tensor:
    """Float (n, 1, H, W) in [0, 1]: bilinear enlargement is linear in the grid, so it is two small matrix products."""
    down = _interpolation(grids.shape[1], height)[rows[:, None] + np.arange(height)]  # (n, H, cells)
    across = _interpolation(grids.shape[2], width)[columns[:, None] + np.arange(width)]  # (n, W, cells)
    return (down @ grids @ across.transpose(1, 2)).unsqueeze(1)


def _interpolation(cells: int, length: int) -> Tensor:
    """((cells + 1) * size, cells): row r holds the weights with which the cells make up position r."""
    size = -(-length // cells)
    return F.interpolate(torch.eye(cells)[None], size=(cells + 1) * size, mode="linear", align_corners=False)[0].T
