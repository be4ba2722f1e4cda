"""Test whether a layer's map is aligned with the image: each map position must depend on the same image position.

A map is not aligned if `forward` crops, pads, mirrors or rotates the image first, or if tokens are not in row order
(the tokens of Hiera are in the order of its pooling). A misaligned map, upsampled to the size of the image, would
highlight the wrong positions.
"""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from saliency_bench.compute.classifiers.classifier import Classifier
from saliency_bench.types import Images
from saliency_bench.utils.seeds import seed_of, uniform
from saliency_bench.utils.untouched import reset_generators, untouched

CELLS = 4  # cells along each side of the image
# A map is misplaced if its changes correlate with distances in a mirrored, rotated or shifted image (correlation `FIT`:
# 0.58 or more in networks that do this, 0.46 or less in other networks) and clearly less with distances in the image
# itself (`AHEAD`).
FIT, AHEAD = 0.5, 0.2
# Both correlations may be low, for some token orders or if all positions are mixed. In this case, the change at a
# position from replacing its own cell must be at least this share of the change from any other cell (tokens of Hiera
# reach 0.2 at most), and at least half of the change from the cell in a mirrored, rotated or shifted image.
SHARE = 0.4
BAND = 8  # a stem is tested with a band at each side of the image, 1 / BAND of the image wide
SPREAD = 0.15  # a stem mixes positions, and is not tested, if a band's changes have a larger standard deviation
FAINT = 1e-2  # changes below this share of the largest change count as equal


def lies_as_the_image(
    classifier: Classifier,
    image: Images,
    module: nn.Module,
    grid: tuple[int, int],
    channels_first: Callable[[Tensor], Tensor],
) -> bool:
    """Return whether each position of a module's map depends on the same position in the image.

    The cells of the image are replaced with noise one after the other. The change at a position of the map must
    correlate with the position's proximity to the cell, and more so than it would if the image were mirrored, rotated
    or shifted. Noise at the border of the image must also change the map. The border is half a cell of the map wide at
    the top and left, and a whole cell at the bottom and right, where strides may skip pixels.

    Args:
        classifier: The network.
        image: One image (1, 3, H, W).
        module: A module of the network.
        grid: (h, w) of the module's map.
        channels_first: Function that turns the module's output into (n, C, h, w).
    """
    (h, w), (height, width) = grid, image.shape[2:]
    tall, wide = min(height, CELLS), min(width, CELLS)
    cells = _cells(height, width, tall, wide)
    replaced = [cells == cell for cell in range(tall * wide)]
    borders = list(_borders(height, width, h, w))
    changes = _changes(classifier, image, module, [*replaced, *borders], channels_first)  # (n, h * w)
    of_cells, of_borders = changes[: len(replaced)], changes[len(replaced) :]
    if not (of_cells > 0).any():  # the network returns the same output for all images
        return True
    return _is_in_place(of_cells, (h, w), (tall, wide)) and bool((of_borders > 0).any(dim=1).all())


def stem_lies_as_the_image(
    classifier: Classifier, image: Images, convolution: nn.Module, grid: tuple[int, int], allowed: tuple[float, float]
) -> bool:
    """Return whether the first convolution receives the image unchanged: not padded, cropped, moved or mirrored.

    Noise replaces a band at each side of the image. The mean position of the resulting changes must be in that band.

    Args:
        classifier: The network.
        image: One image (1, 3, H, W).
        convolution: The first convolution.
        grid: (h, w) of the convolution's map.
        allowed: Largest offset of the mean position (rows, columns), as a fraction of the side.
    """
    height, width = image.shape[2:]
    cells = [_cells(height, width, BAND, 1), _cells(height, width, 1, BAND)]
    bands = [of_axis == band for of_axis in cells for band in (0, BAND - 1)]
    changes = _changes(classifier, image, convolution, bands, lambda output: output).view(2, 2, *grid)
    for axis in (0, 1):
        profiles = changes[axis].sum(dim=2 - axis)  # (2, positions along the axis)
        if not (profiles.sum(dim=1) > 0).all():
            continue  # the band is cropped away, which the test of the map's borders detects
        places = (torch.arange(grid[axis], dtype=torch.float32) + 0.5) / grid[axis]
        weights = profiles / profiles.sum(dim=1, keepdim=True)
        means = weights @ places
        spread = (weights * (places - means[:, None]) ** 2).sum(dim=1).sqrt()
        is_off = (means - torch.tensor([0.5 / BAND, 1 - 0.5 / BAND])).abs() > allowed[axis]
        if bool((is_off & (spread <= SPREAD)).any()):
            return False
    return True


def _is_in_place(changes: Tensor, grid: tuple[int, int], cells: tuple[int, int]) -> bool:
    """Return whether noise in a cell changes the map at the cell's own position. `changes` is (cells, positions)."""
    largest = changes.amax(dim=0)
    shares = changes / largest.clamp(min=1e-30)
    profile = _centred(shares.clamp(min=FAINT).log())
    sources, places = _coordinates(cells), _coordinates(grid)

    def fit(moved: Tensor) -> float:
        """Return the correlation between the changes and the proximity of the cells to the moved positions."""
        nearness = _centred(-torch.cdist(sources, moved))
        return float((profile * nearness).sum() / (profile.norm() * nearness.norm()).clamp(min=1e-30))

    reach = torch.tensor([max(1 / cell, 1 / place) / 2 for cell, place in zip(cells, grid, strict=True)]) + 1e-6

    def share(moved: Tensor) -> float:
        """Return the mean change that the cells at the moved positions cause, as a share of the largest change."""
        is_own = ((sources[:, None] - moved).abs() < reach).all(dim=2)
        return float((shares * is_own).amax(dim=0)[largest > 0].mean())

    itself, moved = fit(places), max(map(fit, _moved(places)))
    if itself >= FIT:
        return True
    if moved >= FIT and moved > itself + AHEAD:
        return False
    return share(places) >= max(SHARE, max(map(share, _moved(places))) / 2)


def _moved(places: Tensor) -> Iterator[Tensor]:
    """Yield the new coordinates of positions in [0, 1]^2 for a mirrored, a rotated and a shifted image."""
    turned = places.flip(1)
    for points in (places, turned):
        for mirrored in ((True, False), (False, True), (True, True)):
            yield torch.where(torch.tensor(mirrored), 1 - points, points)
    yield turned
    for shift in ((0.5, 0), (0, 0.5), (0.5, 0.5)):
        yield (places + torch.tensor(shift)) % 1


def _centred(values: Tensor) -> Tensor:
    """Subtract the means of a matrix's rows and columns, because cells and positions differ in how much they change."""
    return values - values.mean(dim=0) - values.mean(dim=1, keepdim=True) + values.mean()


def _coordinates(shape: tuple[int, int]) -> Tensor:
    """Return the centre (row, column) of each cell of a grid over [0, 1]^2, Float (h * w, 2)."""
    rows, columns = ((torch.arange(count, dtype=torch.float32) + 0.5) / count for count in shape)
    return torch.cartesian_prod(rows, columns)


def _changes(
    classifier: Classifier,
    image: Images,
    module: nn.Module,
    replaced: list[Tensor],
    channels_first: Callable[[Tensor], Tensor],
) -> Tensor:
    """Return how much each map position changes if noise replaces the pixels in each of n masks, (n, h * w)."""
    noise = torch.from_numpy(uniform(seed_of("placement"), image.numel())).view_as(image).to(image)
    outputs: list[Tensor] = []
    handle = module.register_forward_hook(lambda module, inputs, output: outputs.append(output), prepend=True)
    maps = []
    try:
        with untouched(classifier), classifier.uncounted(), torch.no_grad():
            for mask in [torch.zeros(image.shape[2:], dtype=torch.bool), *replaced]:
                reset_generators(classifier)
                classifier(torch.where(mask.to(image.device), noise, image))
                maps.append(channels_first(outputs[-1])[0].float().flatten(1).cpu())
                outputs.clear()
    finally:
        handle.remove()
    return torch.stack([(other - maps[0]).norm(dim=0) for other in maps[1:]])


def _cells(height: int, width: int, tall: int, wide: int) -> Tensor:
    """Divide the positions into tall x wide cells. Return the cell index of each position, Int (height, width)."""
    rows, columns = torch.arange(height) * tall // height, torch.arange(width) * wide // width
    return rows[:, None] * wide + columns


def _borders(height: int, width: int, h: int, w: int) -> Iterator[Tensor]:
    """Yield one mask (height, width) per border strip: half a cell wide at the top and left, else one cell wide."""
    for axis, length, cells in ((0, height, h), (1, width, w)):
        places = torch.arange(length).view((-1, 1) if axis == 0 else (1, -1)).expand(height, width)
        if length >= 2 * cells:
            yield places < length // (2 * cells)
        yield places >= length - -(-length // cells)
