"""Whether a layer's map lies as the image does: whether each place of it looks at the same place of the image.

It does not where `forward` crops, mirrors or turns the image first, or where tokens are in another order than
row by row: those of Hiera are in that of its pooling. Enlarged to the image, such a map would show the wrong places.
"""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from saliency_bench.classifiers.classifier import Classifier
from saliency_bench.types import Images
from saliency_bench.utils.seeds import seed_of, uniform
from saliency_bench.utils.untouched import untouched

CELLS = 4  # along each side of the image, at most
# A map is misplaced below both: the share of the largest change, which is near 1 where attention mixes all places, and
# the correlation of where a place lies with where it looks, which is near 1 in any small network.
SHARE, CORRELATION = 0.5, 0.6


def lies_as_the_image(
    classifier: Classifier,
    image: Images,
    module: nn.Module,
    grid: tuple[int, int],
    channels_first: Callable[[Tensor], Tensor],
) -> bool:
    """Return whether each place of a module's map depends on the same place of the image.

    The image is replaced by noise in one cell after the other. A place of the map must change where its own cell is
    replaced, on average at least `SHARE` as much as where the cell is replaced that changes it most; or where its
    changes come from must go with where it lies. What lies at the border of the image must change the map too: half a
    cell of the map at the top and on the left, and a whole one at the bottom and on the right, where strides leave
    pixels over.

    Args:
        classifier: the network.
        image: (1, 3, H, W).
        module: one of its modules.
        grid: (h, w) of its map.
        channels_first: makes (n, C, h, w) of its output.
    """
    (h, w), (height, width) = grid, image.shape[2:]
    tall, wide = min(h, CELLS), min(w, CELLS)
    cells = _cells(height, width, tall, wide)
    replaced = [cells == cell for cell in range(tall * wide)]
    borders = list(_borders(height, width, h, w))
    changes = _changes(classifier, image, module, [*replaced, *borders], channels_first)  # (n, h * w)
    of_cells, of_borders = changes[: len(replaced)], changes[len(replaced) :]
    largest = of_cells.amax(dim=0)
    if not (largest > 0).any():  # a network that is the same for all images
        return True
    inside = of_cells.gather(0, _cells(h, w, tall, wide).view(1, -1))[0]
    share = float((inside / largest)[largest > 0].mean())
    in_place = share >= SHARE or _correlation(of_cells, (h, w), (tall, wide)) >= CORRELATION
    return in_place and bool((of_borders > 0).any(dim=1).all())


def _correlation(changes: Tensor, grid: tuple[int, int], cells: tuple[int, int]) -> float:
    """Return how far where places lie goes with where their changes come from, the lower of rows and columns.

    Args:
        changes: (tall * wide, h * w).
        grid: (h, w), of the places.
        cells: (tall, wide), of the image.
    """
    weights = changes - changes.amin(dim=0)
    alive = weights.sum(dim=0) > 0
    weights = (weights / weights.sum(dim=0).clamp(min=1e-30))[:, alive]
    correlations = [1.0]
    for axis in (0, 1):
        if cells[axis] > 1:
            places, sources = (_coordinate(shape, axis) for shape in (grid, cells))
            pairs = torch.stack([places[alive], (weights * sources[:, None]).sum(dim=0)])
            correlations.append(float(torch.corrcoef(pairs)[0, 1].nan_to_num(1)))
    return min(correlations)


def _coordinate(shape: tuple[int, int], axis: int) -> Tensor:
    """Return the row (axis 0) or column (1) of each place of a grid, Float (h * w,)."""
    places = torch.arange(shape[axis], dtype=torch.float32)
    return (places[:, None] if axis == 0 else places[None]).expand(shape).flatten()


def _changes(
    classifier: Classifier,
    image: Images,
    module: nn.Module,
    replaced: list[Tensor],
    channels_first: Callable[[Tensor], Tensor],
) -> Tensor:
    """Return how far each place of the map changes where noise replaces the pixels of each mask, (n, h * w)."""
    noise = torch.from_numpy(uniform(seed_of("placement"), image.numel())).view_as(image).to(image)
    outputs: list[Tensor] = []
    handle = module.register_forward_hook(lambda module, inputs, output: outputs.append(output), prepend=True)
    maps = []
    try:
        with untouched(classifier), classifier.uncounted(), torch.no_grad():
            for mask in [torch.zeros(image.shape[2:], dtype=torch.bool), *replaced]:
                torch.manual_seed(0)  # a network may draw; `untouched` sets the generators back
                classifier(torch.where(mask.to(image.device), noise, image))
                maps.append(channels_first(outputs[-1])[0].float().flatten(1).cpu())
                outputs.clear()
    finally:
        handle.remove()
    return torch.stack([(other - maps[0]).norm(dim=0) for other in maps[1:]])


def _cells(height: int, width: int, tall: int, wide: int) -> Tensor:
    """Return the cell of each of height x width places, Int (height, width), of tall x wide cells."""
    rows, columns = torch.arange(height) * tall // height, torch.arange(width) * wide // width
    return rows[:, None] * wide + columns


def _borders(height: int, width: int, h: int, w: int) -> Iterator[Tensor]:
    """Yield masks (height, width) of the borders: half a cell at the start of each side, and a cell at its end."""
    for axis, length, cells in ((0, height, h), (1, width, w)):
        places = torch.arange(length).view((-1, 1) if axis == 0 else (1, -1)).expand(height, width)
        if length >= 2 * cells:
            yield places < length // (2 * cells)
        yield places >= length - -(-length // cells)
