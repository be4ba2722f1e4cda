"""Average random draws of each image: all of them, or only as many as its map needs to be reliable.

With `reliability=0.9` an image gets its draws in blocks: the first block ends after `FIRST` draws, each further one
when the draws have grown by half (16, 24, 36, 54, 81 ...), the last one at the explainer's own number of draws, which
is the most that an image gets. After each block the reliability of the map so far is estimated from the two halves of
its draws, as for any map that averages draws (`maps.reliability`: 2 r / (1 + r), r the correlation of the maps of both
halves over pixels). An image whose estimate is at least the wanted one gets no further draws. Its map is the map of
that many draws.

Draws are the first ones of the image's own sequence, and blocks depend on the options alone. So neither other images,
nor the batch size, nor the number of processes changes a map. Without `reliability` there is one block of all draws.
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
    """Return maps that average `most` draws, or of each image as many as it needs for a wanted reliability.

    Args:
        images: (B, 3, H, W).
        most: largest number of draws of an image.
        reliability: the wanted one; None: all images get all draws.
        add: adds a block of draws of some images, whose indices it gets.
        read: returns the maps of some images from the draws so far.
    """
    result: list[Tensor] = []
    draws = torch.zeros(len(images), dtype=torch.int64)
    left, start = torch.arange(len(images), device=images.device), 0
    for end in ends(most, reliability):
        add(left, start, end)
        of_left = read(left, end)
        result = result or [part.clone() for part in of_left]
        for of_all, part in zip(result, of_left, strict=True):
            of_all[left] = part
        draws[left.cpu()], start = end, end
        if reliability is not None:
            _, even, odd = (half.cpu().numpy() for half in of_left)
            unreliable = ~(maps.reliability(even, odd) >= reliability)  # a constant half has none
            left = left[torch.from_numpy(unreliable).to(left.device)]
        if len(left) == 0:
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
