"""Average random draws of each image: all of them, or only as many as its map needs to be reliable.

With `reliability=0.9`, the draws of an image come in blocks. The first block ends after `FIRST` draws, and each further
block when the number of draws has grown by half (16, 24, 36, 54, 81 ...). The last block ends at the explainer's own
number of draws, the most that an image gets. After each block, the two halves of the draws give an estimate of the
reliability of the map (`maps.reliability`: 2 r / (1 + r), where r is the correlation of the two half maps over pixels).
An image whose estimate reaches the wanted reliability gets no further draws, and its map averages the draws so far.

An image uses the first draws of its own sequence, and the blocks depend only on the options. So other images, the batch
size and the number of processes do not change a map. Without `reliability`, one block holds all draws.
"""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from saliency_bench import maps
from saliency_bench.types import Averaged, Images, Maps

FIRST, GROWTH = 16, 1.5

Add = Callable[[Tensor, int, int], None]  # (images, start, end): add the draws start to end - 1 of these images
Read = Callable[[Tensor, int], tuple[Maps, Maps, Maps]]  # (images, draws): their maps of all, even and odd draws


def averaged(images: Images, most: int, reliability: float | None, add: Add, read: Read) -> Averaged:
    """Return maps that average `most` draws, or as many draws as each image needs for the wanted reliability.

    Args:
        images: (B, 3, H, W).
        most: largest number of draws of an image.
        reliability: wanted reliability; None: all images get all draws.
        add: function that adds a block of draws of the images with these indices.
        read: function that returns the maps of the images with these indices from the draws so far.
    """
    result: list[Tensor] = []
    draws = torch.zeros(len(images), dtype=torch.int64)
    indices, start = torch.arange(len(images)), 0  # of the images that get further draws
    left = torch.arange(len(images), device=images.device)  # the same on the device, to avoid a copy that waits
    for end in ends(most, reliability):
        add(left, start, end)
        of_left = read(left, end)
        result = result or [part.clone() for part in of_left]
        for of_all, part in zip(result, of_left, strict=True):
            of_all[left] = part
        draws[indices], start = end, end
        if reliability is not None:
            _, even, odd = (half.cpu().numpy() for half in of_left)
            unreliable = torch.from_numpy(~(maps.reliability(even, odd) >= reliability))  # a constant half has none
            indices, left = indices[unreliable], left[unreliable.to(left.device)]
        if len(indices) == 0:
            break
    return Averaged(result[0], result[1], result[2], draws)


def ends(most: int, reliability: float | None) -> Iterator[int]:
    """Yield the numbers of draws at which blocks end; no block after the first has a single draw.

    A single picture of each image would share its pass with the other images (`classifiers.passes`).
    """
    end = FIRST if reliability is not None else most
    while end < most - 1:
        yield end
        end = int(GROWTH * end)
    yield most
