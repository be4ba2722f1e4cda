"""LIME (Ribeiro et al., 2016): a linear model of the score as a function of the visible superpixels.

    beta = argmin over (b, beta) of sum_i w_i (score(x_i) - b - z_i . beta)^2 + ridge |beta|^2
    w_i = exp(-d_i^2 / (2 width^2)),   d_i = 1 - sqrt(|z_i| / S)                map(pixel) = beta of its superpixel

An image has S superpixels (quickshift, Vedaldi and Soatto, 2008). z_i in {0, 1}^S contains 1 for the superpixels that
are visible in picture x_i. Each superpixel is visible with probability 1/2, and all are visible in the first picture.
Hidden superpixels have their mean colour. d_i is the cosine distance between z_i and the whole image; it is 1 if no
superpixel is visible. The defaults and the kernel are the same as in the authors' package, which writes the kernel as
the square root of exp(-d^2 / width^2). The only difference is that superpixels are smaller in images below 224 pixels.

The regressions of all samples are solved together in float64. The score is a probability by default. Each sample needs
`samples` forward passes or, with `reliability`, only as many as its map needs (see `_draws`). The map of each half of
the draws is a regression on half of the pictures with half of the penalty, so that the penalty per picture stays the
same.
"""

import numpy as np
import torch
from torch import Tensor

from saliency_bench.compute.classifiers.classifier import Classifier
from saliency_bench.compute.classifiers.passes import scores_of
from saliency_bench.declarations import explainer
from saliency_bench.errors import UserError
from saliency_bench.explainers._checks import check_batch_size, check_reliability
from saliency_bench.explainers._draws import averaged
from saliency_bench.registry import install_hint
from saliency_bench.types import Averaged, Images, Maps, On, Target
from saliency_bench.utils.seeds import random_bits, seed_of


def check(*, samples: int, width: float, ridge: float, kernel_size: float | None = None,
          reliability: float | None = None, batch_size: int | None = None, **others: object) -> None:  # fmt: skip
    """Raise UserError if an option is out of range."""
    if samples < 1 or not width > 0 or not ridge > 0 or (kernel_size is not None and kernel_size < 1):
        raise UserError(
            "lime needs samples >= 1, width > 0, ridge > 0 and kernel_size >= 1; "
            f"got {samples=}, {width=}, {ridge=} and {kernel_size=}"
        )
    check_batch_size("lime", batch_size)
    check_reliability("lime", reliability)
    _quickshift()


@explainer(version=2, needs="outputs", passes=lambda options, *_: options["samples"], signed=True, check=check)
def lime(
    classifier: Classifier,
    images: Images,
    target: Target,
    *,
    seeds: list[int],
    samples: int = 1000,
    kernel_size: float | None = None,
    max_dist: float = 200.0,
    ratio: float = 0.2,
    width: float = 0.25,
    ridge: float = 1.0,
    on: On = "probability",
    reliability: float | None = None,
    batch_size: int | None = None,
) -> Averaged:
    """Return the coefficients of a linear model of the score as a function of the visible superpixels.

    Args:
        classifier: Network to explain.
        images: Images of shape (B, 3, H, W) with values in [0, 1].
        target: Weights over the logits, of shape (B, K).
        seeds: One seed per image for the choice of visible superpixels.
        samples: Number of pictures per image; with `reliability`, the maximum number.
        kernel_size: Kernel size of quickshift in pixels. None: 4 for images of at least 224 pixels, and proportionally
            smaller for smaller images, so that the number of superpixels stays the same.
        max_dist: Maximum distance between linked pixels in scikit-image's quickshift, which runs on the image in Lab
            colour space.
        ratio: Weight of colour relative to distance in scikit-image's quickshift.
        width: Width of the kernel that weights pictures by their distance to the image.
        ridge: Weight of the penalty on beta.
        on: Whether the target's weights apply to logits ("logit") or to probabilities ("probability").
        reliability: Required reliability of each image's map, between 0 and 1; further pictures are skipped once it is
            reached. None: use all pictures.
        batch_size: Number of pictures in memory and in one forward pass. None: for images of 224 x 224 pixels, 10 on a
            CPU and 256 on a GPU.

    Returns:
        Signed maps of shape (B, H, W) from all pictures, from the even-numbered pictures and from the odd-numbered
        pictures. Each map is constant on each superpixel.

    Raises:
        UserError: scikit-image is not installed.
    """
    segments = superpixels(images, kernel_size, max_dist, ratio)  # (B, H, W)
    counts = segments.flatten(1).amax(dim=1) + 1  # (B,)
    shown = torch.zeros(len(images), samples, int(counts.max()), dtype=torch.bool)
    for index, (seed, count) in enumerate(zip(seeds, counts.tolist(), strict=True)):
        shown[index, :, :count] = draws(seed, samples, count)
    filled = mean_coloured(images.cpu(), segments)  # the order of sums is fixed only on the CPU
    segments, shown, counts, filled = (tensor.to(images.device) for tensor in (segments, shown, counts, filled))

    scores = images.new_zeros(len(images), samples)

    def add(which: Tensor, start: int, end: int) -> None:
        """Fill in the scores of pictures start to end - 1 of these images."""
        within, kept, subset, hidden = segments[which], shown[which, start:end], images[which], filled[which]

        def switched(samples: Tensor, pictures: Tensor) -> Images:
            """Return pictures with the hidden superpixels in their mean colour."""
            of_pixels = within[samples].flatten(1).expand(len(pictures), -1)
            visible = kept[samples, pictures].gather(1, of_pixels).view(-1, 1, *images.shape[2:])
            return torch.where(visible, subset[samples], hidden[samples])

        scores[which, start:end] = scores_of(classifier, subset, target[which], end - start, switched, on, batch_size)

    distance = 1 - (shown.sum(dim=2) / counts[:, None]).double().sqrt()  # (B, samples)
    weights = torch.exp(-(distance**2) / (2 * width**2))

    def fit(which: Tensor, start: int, end: int, step: int) -> Maps:
        """Fit the maps of these images to every `step`-th picture."""
        drawn = shown[which, start:end:step], scores[which, start:end:step], weights[which, start:end:step]
        coefficients = fitted(drawn[0].double(), drawn[1].double(), drawn[2], ridge / step)
        return coefficients.gather(1, segments[which].flatten(1)).view(-1, *images.shape[2:])

    def read(which: Tensor, count: int) -> tuple[Maps, Maps, Maps]:
        """Return three sets of maps: from the first `count` pictures, the even ones and the odd ones."""
        return fit(which, 0, count, 1), fit(which, 0, count, 2), fit(which, 1, count, 2)

    return averaged(images, samples, reliability, add, read)


def superpixels(images: Images, kernel_size: float | None, max_dist: float, ratio: float) -> Tensor:
    """Return the superpixel index of each pixel, starting at 0, int64 (B, H, W)."""
    quickshift = _quickshift()
    kernel_size = kernel_size or min(4.0, max(1.0, 4 * min(images.shape[2:]) / 224))
    pictures = images.clamp(0, 1).permute(0, 2, 3, 1).double().cpu().numpy()
    segments = [
        quickshift(picture, kernel_size=kernel_size, max_dist=max_dist, ratio=ratio, rng=42) for picture in pictures
    ]
    return torch.from_numpy(np.stack(segments)).long()


def _quickshift():
    """Return scikit-image's quickshift, or raise UserError if scikit-image is not installed."""
    try:
        from skimage.segmentation import quickshift
    except ModuleNotFoundError as error:
        raise UserError(f"lime needs scikit-image for its superpixels: {install_hint('lime')}") from error
    return quickshift


def draws(seed: int, samples: int, count: int) -> Tensor:
    """Draw which superpixels are visible, bool (samples, count). In the first row, all are visible."""
    coins = random_bits(seed_of(seed, "lime"), samples * count) >> np.uint64(63)
    shown = torch.from_numpy(coins.astype(bool)).view(samples, count)
    shown[0] = True
    return shown


def mean_coloured(images: Images, segments: Tensor) -> Images:
    """Fill every superpixel of the images with its mean colour."""
    index = segments[:, None].flatten(2).expand(-1, 3, -1)  # (B, 3, H*W)
    sums = images.new_zeros(len(images), 3, int(segments.max()) + 1, dtype=torch.float64)
    pixels = torch.zeros_like(sums).scatter_add_(2, index, torch.ones_like(index, dtype=torch.float64))
    sums.scatter_add_(2, index, images.flatten(2).double())
    return (sums / pixels.clamp_min(1)).gather(2, index).view(images.shape).to(images.dtype)


def fitted(shown: Tensor, scores: Tensor, weights: Tensor, ridge: float) -> Tensor:
    """Return the coefficients (B, S) of a weighted ridge regression of `scores` on `shown`.

    The intercept is not penalised; it is eliminated by subtracting the weighted means. A column of zeros has the
    coefficient 0.

    Args:
        shown: Visible superpixels of N pictures, of shape (B, N, S).
        scores: Scores of the pictures, of shape (B, N).
        weights: Weights of the pictures, of shape (B, N).
        ridge: Weight of the penalty.
    """
    total = weights.sum(dim=1).clamp_min(torch.finfo(weights.dtype).tiny)
    centred = shown - torch.einsum("bn,bns->bs", weights, shown)[:, None] / total[:, None, None]
    residual = scores - (weights * scores).sum(dim=1, keepdim=True) / total[:, None]
    weighted = centred * weights[:, :, None]
    gram = weighted.transpose(1, 2) @ centred + ridge * torch.eye(shown.shape[2]).to(shown)
    moments = torch.einsum("bns,bn->bs", weighted, residual)
    return torch.linalg.solve(gram, moments)
