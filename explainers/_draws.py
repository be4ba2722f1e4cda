"""Average an explainer's random draws for each image: either all draws, or only as many as a reliable map needs.

With `reliability=0.9`, the draws for an image are computed in blocks. The first block ends after `FIRST` draws, and
each further block ends when the number of draws has grown by half (16, 24, 36, 54, 81 ...). The last block ends at the
explainer's number of draws, which is the maximum. After each block, the reliability of the map is estimated from two
halves of the draws (`maps.reliability`: 2 r / (1 + r), where r is the correlation of the two half maps over pixels). If
the estimate reaches the required reliability, the image receives no further draws, and its map averages the draws so
far.

Each image has a fixed sequence of draws, and the explainer uses the first draws in this sequence. The blocks depend
only on the options. A map therefore does not depend on other images, the batch size or the number of processes. Without
`reliability`, one block contains all draws.
"""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from saliency_bench import maps
from saliency_bench.types import Averaged, Images, Maps

FIRST, GROWTH = 16, 1.5

Add = Callable[[Tensor, int, int], None]  # (images, start, end): add the draws start to end - 1 of these images
Read = Callable[[Tensor, int], tuple[Maps, Maps, Maps]]  # (images, draws): maps of all, even and odd draws


def averaged(images: Images, most: int, reliability: float | None, add: Add, read: Read) -> Averaged:
    """Return maps that average `most` draws, or as many draws as each image needs for the required reliability.

    Args:
        images: Images of shape (B, 3, H, W).
        most: Maximum number of draws per image.
        reliability: Required reliability. None: use all draws for all images.
        add: Function (indices, start, end) that adds the draws start to end - 1 for the images with these indices.
        read: Function (indices, draws) that returns the maps of the images with these indices after `draws` draws.
    """
    result: list[Tensor] = []
    draws = torch.zeros(len(images), dtype=torch.int64)
    indices, start = torch.arange(len(images)), 0  # indices of the images that need further draws
    left = torch.arange(len(images), device=images.device)  # the same indices on the device, to avoid a blocking copy
    for end in ends(most, reliability):
        add(left, start, end)
        of_left = read(left, end)
        result = result or [part.clone() for part in of_left]
        for of_all, part in zip(result, of_left, strict=True):
            of_all[left] = part
        draws[indices], start = end, end
        if reliability is not None:
            _, even, odd = (half.cpu().numpy() for half in of_left)
            unreliable = torch.from_numpy(~(maps.reliability(even, odd) >= reliability))  # NaN for a constant half
            indices, left = indices[unreliable], left[unreliable.to(left.device)]
        if len(indices) == 0:
            break
    return Averaged(result[0], result[1], result[2], draws)


def ends(most: int, reliability: float | None) -> Iterator[int]:
    """Yield the number of draws at the end of each block. Blocks after the first contain at least two draws.

    In a block with one draw per image, one forward pass would contain draws for several images (see
    `classifiers.passes`).
    """
    end = FIRST if reliability is not None else most
    while end < most - 1:
        yield end
        end = int(GROWTH * end)
    yield most
