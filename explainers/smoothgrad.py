"""SmoothGrad (Smilkov et al., 2017): the gradient averaged over noisy copies of the image.

    map = max over channels of |1 / N * sum_i d score / d x at x + e_i|        e_i ~ Normal(0, (sigma * span * std_c)^2)

span is the maximum minus the minimum of the normalised image, over all pixels and channels. std_c is the standard
deviation of the classifier's normalisation. The noise therefore has the same width for all channels in normalised
units. As in the paper, signed gradients are averaged before the reduction over channels. With reduction="sum", the
signed values are summed over channels. The noise is seeded per sample and copy. With sigma = 0, the map equals the map
of `gradient`.
"""

import torch
from torch import Tensor

from saliency_bench.compute.classifiers.classifier import Classifier
from saliency_bench.compute.maps.composing import noisy_copies
from saliency_bench.declarations import explainer
from saliency_bench.errors import UserError
from saliency_bench.explainers._checks import check_batch_size, check_count, check_reliability
from saliency_bench.explainers._draws import averaged
from saliency_bench.explainers._gradients import Reduction, even_steps, over_channels, summed_gradients
from saliency_bench.types import Averaged, Images, Maps, On, Target


def check(*, samples: int, sigma: float, reliability: float | None = None, batch_size: int | None = None,
          **others: object) -> None:  # fmt: skip
    """Raise UserError if an option is out of range."""
    check_count("smoothgrad", "samples", samples)
    check_batch_size("smoothgrad", batch_size)
    check_reliability("smoothgrad", reliability)
    if not sigma >= 0:
        raise UserError(f"sigma of smoothgrad must be at least 0; got {sigma}")


@explainer(
    version=1,
    needs="gradients",
    passes=lambda options, *_: options["samples"],
    signed={"reduction": "sum"},
    check=check,
    also_called=("sg",),
)
def smoothgrad(
    classifier: Classifier,
    images: Images,
    target: Target,
    *,
    seeds: list[int],
    samples: int = 50,
    sigma: float = 0.15,
    reduction: Reduction = "max",
    on: On = "logit",
    reliability: float | None = None,
    batch_size: int | None = None,
) -> Averaged:
    """Return the gradient averaged over noisy copies of the image.

    Args:
        classifier: Network to explain.
        images: Images of shape (B, 3, H, W) with values in [0, 1].
        target: Weights over the logits, of shape (B, K).
        seeds: One seed per image for the noise.
        samples: Number of noisy copies per image; with `reliability`, the maximum number.
        sigma: Width of the noise as a fraction of the image's span.
        reduction: Reduction over channels: the largest absolute value ("max") or the sum of the signed values ("sum").
        on: Whether the target's weights apply to logits ("logit") or to probabilities ("probability").
        reliability: Required reliability of each image's map, between 0 and 1; further copies are skipped once it is
            reached. None: use all copies.
        batch_size: Number of noisy images per batch. None: for images of 224 x 224 pixels, 10 on a CPU and 256 on a
            GPU.

    Returns:
        Maps of shape (B, H, W) from all copies, from the even-numbered copies and from the odd-numbered copies. They
        are non-negative for reduction "max" and signed for "sum".

    Raises:
        UserError: samples or batch_size is below 1, sigma is negative, or reliability is not between 0 and 1.
    """
    check(samples=samples, sigma=sigma, reliability=reliability, batch_size=batch_size)
    copies = noisy_copies(classifier, images, sigma, seeds, samples)
    total, even = torch.zeros_like(images), torch.zeros_like(images)

    def add(which: Tensor, start: int, end: int) -> None:
        """Add the gradients of copies start to end - 1 of these images."""

        def noisy(image: Tensor, step: Tensor) -> tuple[Tensor, float]:
            """Return noisy copies and the factor of their gradients."""
            return copies(which[image], start + step), 1 / samples

        subset, block = images[which], even_steps(images, end)[which, start:]
        sums = summed_gradients(classifier, subset, target[which], on, end - start, batch_size, noisy, block)
        total[which], even[which] = total[which] + sums[0], even[which] + sums[1]

    def read(which: Tensor, count: int) -> tuple[Maps, Maps, Maps]:
        """Return three sets of maps: from the first `count` copies, the even ones and the odd ones."""
        of_all, of_even = total[which], even[which]
        maps, *halves = (over_channels(part, reduction) for part in (of_all, of_even, of_all - of_even))
        return maps * (samples / count), halves[0], halves[1]

    return averaged(images, samples, reliability, add, read)
