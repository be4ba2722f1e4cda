"""Classify many pictures derived from each image. Every method that perturbs images uses the loop in this module.

The n pictures of an image are passed through the network in ceil(n / P) passes of equal size. The last pass is padded
with copies of its last picture. The shape of a pass therefore depends on n alone, and the results of an image are
bit-identical for any batch size, any order of the images, and any other images in its batch. There are two exceptions.
If an image needs only one picture, the pass is the batch itself. On a GPU, which would be underused with few pictures,
a pass contains the pictures of up to `TOGETHER` images if they fit. Such a pass is padded, too.

P depends on the type of device and the size of the pictures. If a pass does not fit in memory, P is halved, and
`Classifier.halved` counts this. Nothing else changes P.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor, nn

from saliency_bench.compute.classifiers.classifier import Classifier
from saliency_bench.compute.classifiers.fast_forward import fast_forward
from saliency_bench.compute.classifiers.windows import Windows, windowed
from saliency_bench.target_weights import score
from saliency_bench.types import Images, Target
from saliency_bench.utils.devices import is_out_of_memory

# 10 images of 224 x 224 on a CPU, where more images exceed the cache and take longer per image; 256 on a GPU.
PIXELS_PER_PASS = {"cpu": 2**19, "cuda": 256 * 224**2}
TOGETHER = {"cpu": 1, "cuda": 8}  # images in a pass; on a CPU a picture's position in a pass may change its last bits

# (samples, pictures) -> Float (n, 3, H, W), picture number pictures[i] of image samples[i]; both as in `Pass`
Draw = Callable[[Tensor, Tensor], Images]
Result = TypeVar("Result")


@dataclass(frozen=True)
class Pass:
    """The pictures of one pass: equally many for each of its images, followed by padding.

    Attributes:
        images: Indices of the images.
        samples: Image index of each picture, Int (n,), or the index of the only image, Int (1,).
        pictures: Index of each picture among the pictures of its image, Int (n,).
        count: Number of pictures that are not padding.
    """

    images: range
    samples: Tensor
    pictures: Tensor
    count: int


def forward_many(
    classifier: nn.Module,
    images: Images,
    count: int,
    draw: Draw,
    read: Callable[[Tensor, Tensor], Tensor],
    batch_size: int | None = None,
    windows: Windows | None = None,
) -> Tensor:
    """Apply `read` to the logits of `count` pictures of each image, and return the results (B, count, ...).

    Only the pictures of one pass are in memory at a time. If there are several pictures per image, the faster copy of
    the network is used (`fast_forward`).

    Args:
        classifier: The classifier.
        images: The images.
        count: Number of pictures per image.
        draw: Function (samples, pictures) that returns these pictures; see `Pass`.
        read: Function (logits (n, K), samples) -> results (n, ...) that processes each row separately.
        batch_size: Pictures per pass; by default `pictures_per_pass`.
        windows: Windows in which each picture may differ from its image, or None if it may differ anywhere.
    """
    forward = fast_forward(classifier, images) if count > 1 else classifier
    if windows is not None and isinstance(classifier, Classifier):
        logits_of = windowed(classifier, forward, images, draw, windows)
    else:
        logits_of = lambda samples, pictures: forward(draw(samples, pictures))  # noqa: E731

    def work(passes: Iterator[Pass]) -> Tensor:
        """Return the results of all passes. Results for padding are dropped."""
        rows = (read(logits_of(item.samples, item.pictures), item.samples)[: item.count] for item in passes)
        return torch.cat(list(rows))

    with torch.no_grad():
        values = in_passes(classifier, images, count, batch_size, work)
    return values.view(len(images), count, *values.shape[1:])


def scores_of(
    classifier: nn.Module,
    images: Images,
    target: Target,
    count: int,
    draw: Draw,
    on: str,
    batch_size: int | None = None,
    windows: Windows | None = None,
) -> Tensor:
    """Return the target's score for `count` pictures derived from each image, Float (B, count). See `forward_many`."""

    def read(logits: Tensor, samples: Tensor) -> Tensor:
        return score(logits, target[samples], on, classifier)

    return forward_many(classifier, images, count, draw, read, batch_size, windows)


def in_passes(
    classifier: nn.Module,
    images: Images,
    count: int,
    batch_size: int | None,
    work: Callable[[Iterator[Pass]], Result],
) -> Result:
    """Call `work` with the passes of `count` pictures of each image, halving the passes if memory runs out.

    Padding is not added to the pass count of a `Classifier`.
    """
    size = len(images) if count == 1 else pictures_per_pass(images, batch_size)
    counter = classifier if isinstance(classifier, Classifier) else None
    before = counter.passes if counter else 0
    while True:
        try:
            result = work(plan(len(images), count, size, images.device, TOGETHER[images.device.type]))
            break
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error) or min(size, count if count > 1 else len(images)) == 1:
                raise
        size //= 2
        if counter:
            counter.halved += 1
    if counter:
        counter.passes = before + len(images) * count
    return result


def plan(images: int, count: int, size: int, device: torch.device, most: int = 1) -> Iterator[Pass]:
    """Yield the passes of `count` pictures of each image, with at most `size` pictures and `most` images per pass.

    With one picture per image, `most` is ignored. Indices are computed on the device, so no transfer is needed. The
    number of images in a pass is a power of two, like common batch sizes: with five images per pass, 16 images would
    need four passes, and a fifth of these passes would be padding.
    """
    together = min(images, size) if count == 1 else 2 ** (max(1, min(size // count, most)).bit_length() - 1)
    each = count if together > 1 or count == 1 else -(-count // -(-count // size))
    numbers = torch.arange(-(-count // each) * each, device=device).clamp(max=count - 1)
    samples = torch.arange(images + together, device=device).clamp(max=images - 1)
    for first in range(0, images, together):
        indices = range(first, min(first + together, images))
        numbers_of_images = samples[first : first + together]
        for start in range(0, count, each):
            pictures = numbers[start : start + each]
            rows = numbers_of_images.repeat_interleave(each) if together > 1 else numbers_of_images
            yield Pass(indices, rows, pictures.repeat(together), len(indices) * min(each, count - start))


def pictures_per_pass(images: Images, batch_size: int | None = None) -> int:
    """Return `batch_size` or, by default, the number of pictures that have `PIXELS_PER_PASS` pixels in total."""
    return batch_size or max(1, PIXELS_PER_PASS[images.device.type] // (images.shape[2] * images.shape[3]))
