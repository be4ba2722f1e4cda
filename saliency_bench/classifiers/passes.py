"""Many pictures made of each image, through the classifier: the one loop of every method that needs them.

A pass holds one image's own pictures, in ceil(n / P) equal pieces, of which the last is filled up with copies of its
last picture. So the shape of a pass depends on n alone, and no bit of a result on the size of a chunk, on the order of
the images or on what else is in a batch. Two exceptions: where an image needs one picture only, the pass is the batch
itself; and on a GPU, which few pictures would leave idle, a pass holds the pictures of up to `TOGETHER` images if they
fit, filled up again.

P is fixed by the kind of device and the size of the pictures. Where a pass does not fit in memory P is halved, which
`Classifier.halved` counts; nothing else chooses it.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor, nn

from saliency_bench.classifiers.classifier import Classifier
from saliency_bench.classifiers.fast_forward import fast_forward
from saliency_bench.target import score
from saliency_bench.types import Images, Target
from saliency_bench.utils.devices import is_out_of_memory

# 10 images of 224 x 224 on the CPU, where more leave its cache and take longer each; 256 on a GPU.
PIXELS_PER_PASS = {"cpu": 2**19, "cuda": 256 * 224**2}
TOGETHER = {"cpu": 1, "cuda": 8}  # images in a pass; on a CPU the place of a picture in a pass may change its last bits

# (samples, pictures) -> Float (n, 3, H, W), picture number pictures[i] of image samples[i]; both as in `Pass`
Draw = Callable[[Tensor, Tensor], Images]
Result = TypeVar("Result")


@dataclass(frozen=True)
class Pass:
    """What one pass holds: of each image of `images` equally many pictures, and behind them what fills it up.

    samples    Int (1,), the number of the only image, or Int (n,) of that of each picture
    pictures   Int (n,), which of an image's pictures
    own        how many of them count
    """

    images: range
    samples: Tensor
    pictures: Tensor
    own: int


def forward_many(
    classifier: nn.Module,
    images: Images,
    count: int,
    draw: Draw,
    read: Callable[[Tensor, Tensor], Tensor],
    batch_size: int | None = None,
) -> Tensor:
    """(B, count, ...): what `read` makes of the logits of `count` pictures of each image.

    Args:
        read: (logits (n, K), samples) -> (n, ...), row by row.
        batch_size: pictures in a pass; None: see `pictures_per_pass`.

    Only one pass of pictures is in memory at a time. A network that gradients are not asked of runs as its faster copy
    (`fast_forward`), but for a single picture of each image.
    """
    forward = fast_forward(classifier, images) if count > 1 else classifier

    def work(passes: Iterator[Pass]) -> Tensor:
        return torch.cat([read(forward(draw(one.samples, one.pictures)), one.samples)[: one.own] for one in passes])

    with torch.no_grad():
        found = in_passes(classifier, images, count, batch_size, work)
    return found.view(len(images), count, *found.shape[1:])


def scores_of(
    classifier: nn.Module,
    images: Images,
    target: Target,
    count: int,
    draw: Draw,
    on: str,
    batch_size: int | None = None,
) -> Tensor:
    """Float (B, count): the scores of `count` pictures made of each image, as `forward_many` makes them."""

    def read(logits: Tensor, samples: Tensor) -> Tensor:
        return score(logits, target[samples], on, classifier)

    return forward_many(classifier, images, count, draw, read, batch_size)


def in_passes(
    classifier: nn.Module,
    images: Images,
    count: int,
    batch_size: int | None,
    work: Callable[[Iterator[Pass]], Result],
) -> Result:
    """`work` of the passes of `count` pictures of each image; anew in passes of half the size where one does not fit.

    A `Classifier` counts the pictures, without those that fill up passes.
    """
    size = len(images) if count == 1 else pictures_per_pass(images, batch_size)
    known = classifier if isinstance(classifier, Classifier) else None
    before = known.passes if known else 0
    while True:
        try:
            result = work(plan(len(images), count, size, images.device, TOGETHER[images.device.type]))
            break
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error) or min(size, count if count > 1 else len(images)) == 1:
                raise
        size //= 2
        if known:
            known.halved += 1
    if known:
        known.passes = before + len(images) * count
    return result


def plan(images: int, count: int, size: int, device: torch.device, most: int = 1) -> Iterator[Pass]:
    """The passes of `count` pictures of each image: `size` pictures and `most` images in each, at most.

    With one picture of each image, `most` does not count. The numbers are made on the device: nothing waits for it.
    """
    together = min(images, size) if count == 1 else max(1, min(size // count, most))
    each = count if together > 1 or count == 1 else -(-count // -(-count // size))
    numbers = torch.arange(-(-count // each) * each, device=device).clamp(max=count - 1)
    samples = torch.arange(images + together, device=device).clamp(max=images - 1)
    for first in range(0, images, together):
        of = range(first, min(first + together, images))
        some = samples[first : first + together]
        for start in range(0, count, each):
            pictures = numbers[start : start + each]
            own = len(of) * min(each, count - start)
            yield Pass(of, some.repeat_interleave(each) if together > 1 else some, pictures.repeat(together), own)


def pictures_per_pass(images: Images, batch_size: int | None = None) -> int:
    """`batch_size`, or as many as hold `PIXELS_PER_PASS` pixels."""
    return batch_size or max(1, PIXELS_PER_PASS[images.device.type] // (images.shape[2] * images.shape[3]))
