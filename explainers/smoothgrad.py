"""SmoothGrad (Smilkov et al., 2017; P2, P4): the gradient averaged over noisy copies of the image.

    map = max over channels of |1 / N * sum_i d score / d x at x + e_i|        e_i ~ Normal(0, (sigma * span * std_c)^2)

span is the largest minus the smallest value of the normalised image, over all its pixels and channels, and std_c the
classifier's normalisation: in normalised units the noise has one width. The mean is over signed gradients, as in the
paper; the reduction over channels comes after it ("sum": signed sum). Noise is seeded per sample and copy.
With sigma = 0 the map equals `gradient`.
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
        classifier: the network to explain.
        images: (B, 3, H, W) in [0, 1].
        target: (B, K), weights over the logits.
        seeds: one per image, for its noise.
        samples: noisy copies per image; with `reliability` the most that an image gets.
        sigma: width of the noise as a share of the image's span.
        reduction: over channels: "max" of the absolute values, or signed "sum".
        on: whether the target's weights apply to logits ("logit") or to probabilities ("probability").
        reliability: stop at the reliability, between 0 and 1, that the map of an image should have; None: use all
            copies.
        batch_size: noisy images per pass; None: 10 of 224 x 224, 256 on a GPU.

    Returns:
        Maps (B, H, W) of all, the even-numbered and the odd-numbered copies; non-negative for reduction "max", signed
        for "sum".

    Raises:
        UserError: samples or batch_size is below 1, sigma is negative, or reliability not between 0 and 1.
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
        """Return the maps of all, the even-numbered and the odd-numbered of the first `count` copies."""
        of_all, of_even = total[which], even[which]
        maps, *halves = (over_channels(part, reduction) for part in (of_all, of_even, of_all - of_even))
        return maps * (samples / count), halves[0], halves[1]

    return averaged(images, samples, reliability, add, read)
