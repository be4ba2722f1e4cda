"""Whether the tokens of a layer lie as the image does, row by row. Those of Hiera lie in the order of its pooling."""

import torch
from torch import Tensor, nn

from saliency_bench.classifiers.classifier import Classifier
from saliency_bench.types import Images
from saliency_bench.utils.seeds import seed_of, uniform
from saliency_bench.utils.untouched import untouched

CELLS = 4  # along each side of the image, at most
SHARE = 0.5  # of the largest change: below, a token belongs elsewhere; where attention mixes all, the shares are near 1


def lie_in_rows(classifier: Classifier, image: Images, module: nn.Module, grid: tuple[int, int]) -> bool:
    """Return whether token number i * w + j, of (h, w), depends on what lies in row i and column j of the image.

    The image is replaced by noise in one cell after the other. A token must change where its own cell is replaced, on
    average at least `SHARE` as much as where the cell is replaced that changes it most.

    Args:
        classifier: the network.
        image: (1, 3, H, W).
        module: one of its modules, which gives tokens (1, h * w, C).
        grid: (h, w).
    """
    (h, w), (height, width) = grid, image.shape[2:]
    tall, wide = min(h, CELLS), min(w, CELLS)
    noise = torch.from_numpy(uniform(seed_of("token order"), image.numel())).view_as(image).to(image)
    cells = _cells(height, width, tall, wide).to(image.device)
    outputs: list[Tensor] = []
    handle = module.register_forward_hook(lambda module, inputs, output: outputs.append(output), prepend=True)
    try:
        with untouched(classifier), classifier.uncounted(), torch.no_grad():
            tokens = []
            for cell in range(-1, tall * wide):  # first the image as it is
                classifier(torch.where(cells == cell, noise, image))
                tokens.append(outputs[-1][0].float())
                outputs.clear()
    finally:
        handle.remove()
    changes = torch.stack([(other - tokens[0]).norm(dim=1) for other in tokens[1:]], dim=1)  # (h * w, cells)
    inside = changes.gather(1, _cells(h, w, tall, wide).to(changes.device).view(-1, 1))[:, 0]
    return float((inside / changes.amax(dim=1).clamp(min=1e-30)).mean()) >= SHARE


def _cells(height: int, width: int, tall: int, wide: int) -> Tensor:
    """Return the cell of each of height x width places, Int (height, width), of tall x wide cells."""
    rows, columns = torch.arange(height) * tall // height, torch.arange(width) * wide // width
    return rows[:, None] * wide + columns
