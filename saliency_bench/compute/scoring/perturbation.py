"""Compute probabilities along perturbation paths.

On a path, a map's top pixels are inserted into a reference or deleted.

Insertion, deletion, accuracy at exposures and the contrastive metrics use the same probabilities. `Curves` computes
them once per batch and map. If several metrics share a path, its pictures are classified only once.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor, nn, special
from torch.nn import functional as F

from saliency_bench.compute.classifiers.loading import load_classifier
from saliency_bench.compute.classifiers.passes import Draw, forward_many, scores_of
from saliency_bench.compute.scoring.imputation import imputed, slight_noise
from saliency_bench.errors import UserError, unknown
from saliency_bench.maps import read_array, read_maps, tie_breaker
from saliency_bench.read.statistics.exposures import EXPOSURES, area
from saliency_bench.target_weights import activation_of, expand, one_hot, probabilities, recognised
from saliency_bench.types import Images, Target
from saliency_bench.utils.seeds import seed_of, uniform
from saliency_bench.utils.untouched import untouched

BLUR_SIZE, BLUR_SIGMA = 11, 5.0
GAUSSIAN_SIGMA = 0.5

Reference = Literal["black", "blur", "mean", "noise", "inpaint", "linear", "farthest", "gaussian"]


class Curves:
    """The classifier's probabilities for pictures that keep either the top `count` pixels of a map or all other pixels.

    Args:
        classifier: Module from images to logits (B, K). Its `activation` (default softmax) converts logits to p. The
            references "blur" and "mean" read its buffer `mean` (1, 3, 1, 1).
        images: Float (B, 3, H, W) in [0, 1].
        target: (B, K) or (1, K), the weights w of `path`.
        maps: Torch or NumPy (B, H, W). `maps.descending` orders the pixels: by value, and ties by a fixed permutation.
        seeds: One seed per image, for the references "noise", "linear" and "gaussian"; None means 0 to B-1.

    The pictures of one path of one image share passes (`passes.forward_many`). A probability is therefore bit-identical
    for the same image, map and number of counts of the path, regardless of earlier calls and of the order and number
    of samples. `passes` counts the images passed through the classifier. `undefined`, Bool (B,), marks samples whose
    results are NaN because a picture has no probabilities (`compute.targets.no_probabilities`).

    Raises: UserError if maps and images differ in size, or if target and classifier differ in the number of classes.
    """

    def __init__(
        self,
        classifier: nn.Module,
        images: Images,
        target: Target,
        maps: Tensor | np.ndarray,
        seeds: Sequence[int] | None = None,
    ):
        values = read_maps(maps)
        if values.shape != (len(images), *images.shape[2:]):
            raise UserError(
                f"maps have shape {values.shape}, but images have shape {tuple(images.shape)}; use maps of the size "
                "of the images"
            )
        self.classifier = classifier
        self.activation = activation_of(classifier)
        self.images = images.detach()
        self.target = expand(target, images).double().cpu().numpy()
        self.height, self.width = values.shape[1:]
        self.seeds = list(range(len(images)) if seeds is None else seeds)
        self.passes = 0
        self.undefined = np.zeros(len(images), dtype=bool)
        self.maps = values
        self._ranks: Tensor | None = None
        self._references: dict[str, Tensor] = {}
        self._known: dict[tuple[str, str, tuple[int, ...]], Tensor] = {}
        self._others: dict[Hashable, np.ndarray] = {}

    def path(self, keep: str = "top", reference: str = "black", counts: Iterable[int] = ()) -> np.ndarray:
        """Return sum_k w_k p_k, float64 (B, len(counts)), for the pictures of `probabilities`.

        For a one-hot target, the result is P_c.
        """
        return self.weighted(self.target, keep, reference, counts)

    def weighted(
        self, weights: np.ndarray, keep: str = "top", reference: str = "black", counts: Iterable[int] = ()
    ) -> np.ndarray:
        """Return sum_k v_k p_k, float64 (B, len(counts)), for weights v (B, K) instead of the target's weights."""
        p = self._path(keep, reference, counts).double()
        return torch.einsum("bck,bk->bc", p, torch.as_tensor(weights).to(p)).cpu().numpy()

    def weighted_each(
        self, weights: np.ndarray, keep: str, reference: str, counts: Sequence[Sequence[int] | np.ndarray]
    ) -> list[np.ndarray]:
        """Return, for each sample, sum_k v_k p_k at its n counts for each of its S rows of weights, float64 (n, S)."""
        rows = torch.as_tensor(weights).double().to(self.images.device)
        by_sample: list[np.ndarray] = [np.empty((0, rows.shape[1]))] * len(self.images)
        for length in sorted({len(of_sample) for of_sample in counts} - {0}):
            samples = [sample for sample, of_sample in enumerate(counts) if len(of_sample) == length]
            pixels = np.stack([self._checked(keep, reference, counts[sample]) for sample in samples])
            read = partial(_weighted, rows[samples])
            values = self._classified(keep, reference, pixels, samples, read).cpu().numpy()
            for sample, of_sample in zip(samples, values, strict=True):
                by_sample[sample] = of_sample
        return by_sample

    def recognised(
        self, labels: np.ndarray, keep: str = "top", reference: str = "black", counts: Iterable[int] = ()
    ) -> np.ndarray:
        """Return 1 if the classifier is correct (`target.recognised`), else 0, as float64 (B, len(counts)).

        The value is NaN if p is NaN. `labels`, Bool (B, K), contains the correct classes, which do not depend on the
        target. The other arguments are the same as in `probabilities`.
        """
        p = self.probabilities(keep, reference, counts)
        hits = recognised(p, np.asarray(labels, dtype=bool)[:, None], self.activation)
        return np.where(np.isnan(p).any(axis=2), np.nan, hits)

    def probabilities(self, keep: str = "top", reference: str = "black", counts: Iterable[int] = ()) -> np.ndarray:
        """Return the probabilities of pictures that keep or lose `count` top pixels, float32 (B, len(counts), K).

        Args:
            keep: "top" to keep the top `count` pixels of the image and take all others from the reference, or "rest"
                for the reverse.
            reference: "black": 0, for images in [0, 1]. "mean": the classifier's normalisation mean. "blur": see
                `blurred`. "noise": see `noise`. "inpaint": missing pixels are filled in from the kept pixels, see
                `inpainted`. "linear": the mean of the neighbours plus slight noise, see `imputation.imputed`.
                "farthest": see `farthest`. "gaussian": see `gaussian`.
            counts: Numbers of pixels, 0 to H*W.
        """
        return self._path(keep, reference, counts).cpu().numpy()

    def _path(self, keep: str, reference: str, counts: Iterable[int]) -> Tensor:
        """Return `probabilities` as a tensor, computed once per path."""
        pixels = self._checked(keep, reference, counts)
        if len(pixels) == 0:
            return torch.empty(len(self.images), 0, self.target.shape[1])
        key = keep, reference, tuple(pixels.tolist())
        if key not in self._known:
            every = list(range(len(self.images)))
            shared = np.broadcast_to(pixels, (len(every), len(pixels)))
            self._known[key] = self._classified(keep, reference, shared, every, lambda p, which: p)
        return self._known[key]

    def _checked(self, keep: str, reference: str, counts: Iterable[int]) -> np.ndarray:
        """Return the counts as an array, or raise UserError if the path is invalid."""
        if keep not in ("top", "rest"):
            raise UserError(f"keep='{keep}' is neither 'top' nor 'rest'")
        if reference not in REFERENCES:
            raise unknown("reference", reference, REFERENCES)
        whole = self.height * self.width
        given = list(counts)
        for count in given:
            if count != int(count) or not 0 <= count <= whole:
                raise UserError(f"a count of pixels must be a whole number from 0 to {whole}; got {count}")
        return np.array(given, dtype=np.int64)

    def _classified(
        self,
        keep: str,
        reference: str,
        counts: np.ndarray,
        samples: list[int],
        read: Callable[[Tensor, Tensor], Tensor],
    ) -> Tensor:
        """Classify the pictures of b samples at their counts (b, n), and return the results of `read`, (b, n, ...)."""
        device = self.images.device
        pixels, sample_of = torch.from_numpy(np.array(counts)).to(device), torch.tensor(samples).to(device)

        def draw(which: Tensor, numbers: Tensor) -> Images:
            top = (self._rank()[sample_of[which]] < pixels[which, numbers][:, None, None])[:, None]
            return self.drawn(sample_of[which], top if keep == "top" else ~top, reference)

        return self._answers(samples, pixels.shape[1], draw, read)

    def _answers(self, samples: list[int], count: int, draw: Draw, read: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        """Classify `count` pictures per sample, and return the results of `read`, (b, count, ...)."""
        classes = self.target.shape[1]

        def read_logits(logits: Tensor, which: Tensor) -> Tensor:
            if logits.shape[1] != classes:
                raise UserError(
                    f"the target has {classes} classes, but the classifier has {logits.shape[1]}; pass one weight per "
                    "class"
                )
            return read(probabilities(logits.float(), self.activation), which)

        with untouched(self.classifier), torch.no_grad():
            values = forward_many(self.classifier, self.images[samples], count, draw, read_logits)
        self.passes += len(samples) * count
        self.undefined[samples] |= values.isnan().flatten(1).any(dim=1).cpu().numpy()
        return values

    def logits(self, key: Hashable, count: int, draw: Draw) -> np.ndarray:
        """Return sum_k w_k logit_k, float64 (B, count), for `count` pictures that `draw` creates from each image.

        The value is NaN if the logit is not a number.

        Args:
            key: Name of these pictures. Pictures with the same name are classified only once.
            count: Number of pictures of each image.
            draw: As in `passes.forward_many`.
        """
        if key not in self._others:
            target = torch.from_numpy(self.target).float().to(self.images.device)
            with untouched(self.classifier), torch.no_grad():
                sums = scores_of(self.classifier, self.images, target, count, draw, "logit")
            self.passes += sums.numel()
            self._others[key] = torch.where(sums.isfinite(), sums, torch.nan).double().cpu().numpy()
            self.undefined |= np.isnan(self._others[key]).any(axis=1)
        return self._others[key]

    def shown(self, kept: np.ndarray, reference: str) -> np.ndarray:
        """Return the probabilities, Float32 (B, K), of pictures with a reference outside `kept`, Bool (B, H, W)."""
        inside = torch.from_numpy(kept).to(self.images.device)[:, None]

        def draw(samples: Tensor, pictures: Tensor) -> Images:
            return self.drawn(samples, inside[samples], reference)

        every = list(range(len(self.images)))
        return self._answers(every, 1, draw, lambda p, which: p)[:, 0].cpu().numpy()

    def lost(self, scores: np.ndarray) -> list[int]:
        """Return the samples whose scores (B,) are NaN because a picture has no probabilities."""
        return np.flatnonzero(self.undefined & ~np.isfinite(scores)).tolist()

    def drawn(self, samples: Tensor, kept: Tensor, reference: str) -> Images:
        """Return pictures (n, 3, H, W): image samples[i] where `kept`, Bool (n, 1, H, W), is true, else reference."""
        if reference == "inpaint":
            return inpainted(self.images[samples], kept)
        if reference == "linear":
            return imputed(self.images[samples], kept, self._reference(reference)[samples])
        return torch.where(kept, self.images[samples], self._reference(reference)[samples])

    def _reference(self, name: str) -> Images:
        """Return the reference images with this name. They are computed once."""
        if name not in self._references:
            if name in DRAWN:
                self._references[name] = DRAWN[name](self.images, self.seeds)
            else:
                self._references[name] = FIXED[name](self.classifier, self.images)
        return self._references[name]

    def _rank(self) -> Tensor:
        """Rank of each pixel, Int (B, H, W), in the order of `maps.descending`: 0 for the top pixel of a map."""
        if self._ranks is None:
            permutation = torch.from_numpy(tie_breaker(self.height, self.width).copy()).to(self.images.device)
            # Do not sort -x, because a bitwise sort, as on a GPU, would put -0 before 0.
            values = 0.0 - torch.from_numpy(self.maps).to(self.images.device).flatten(1)
            order = permutation[values[:, permutation].argsort(dim=1, stable=True)]
            numbers = torch.arange(order.shape[1], dtype=torch.int32, device=order.device).expand_as(order)
            ranks = torch.empty_like(order, dtype=torch.int32).scatter_(1, order, numbers)
            self._ranks = ranks.view(len(order), self.height, self.width)
        return self._ranks


def _weighted(weights: Tensor, p: Tensor, which: Tensor) -> Tensor:
    """Return sums (n, S) of probabilities p (n, K), weighted by the S rows of each sample in `weights` (B, S, K)."""
    return (weights[which] @ p.double()[:, :, None])[..., 0]


def batched_curves(
    classifier: nn.Module | str,
    images: Images,
    target: Target,
    maps: Tensor | np.ndarray,
    batch_size: int = 16,
    seeds: Sequence[int] | None = None,
) -> Iterator[Curves]:
    """Yield one `Curves` object per batch, for any number of samples outside a run.

    Args:
        classifier: A classifier, or an argument of `load_classifier`.
        images: Images (B, 3, H, W) in [0, 1], as torch, numpy or a list.
        target: Weights (B, K) or (1, K), or one class per image (B,).
        maps: Torch or NumPy (B, H, W).
        batch_size: Number of samples in a batch.
        seeds: One seed per image, for the references "noise", "linear" and "gaussian"; None means 0 to B-1.
    """
    module = load_classifier(classifier)
    device = module.device
    images, target = read_images(images), torch.as_tensor(target)
    needed = (len(maps), 3, *maps.shape[1:])
    if images.shape != needed:
        raise UserError(f"maps of shape {tuple(maps.shape)} need images of shape {needed}; got {tuple(images.shape)}")
    if len(images) == 0:
        raise UserError("there is no image to score; pass at least one")
    check_frame(images)
    seeds = range(len(images)) if seeds is None else seeds
    check_batch_size(batch_size)
    target = per_image(target, len(images))
    if target.ndim == 1:
        with untouched(module), torch.no_grad():
            target = one_hot(target, module(images[:1].to(device)).shape[1])
    for start in range(0, len(images), batch_size):
        part = slice(start, start + batch_size)
        yield Curves(module, images[part].to(device), target[part], maps[part], seeds[part])


def per_image(target: Tensor, count: int) -> Tensor:
    """Expand a target (B, K) or (1, K), or convert classes (B,), to one row per image.

    Raises:
        UserError: The number of rows of the target is neither 1 nor the number of images.
    """
    if target.ndim == 2 and len(target) == 1:
        return target.expand(count, -1)
    if len(target) != count:
        raise UserError(f"pass one class, or one row of the target, for each of the {count} images; got {len(target)}")
    return target


def check_batch_size(batch_size: object) -> None:
    """Raise UserError unless the batch size is a whole number of 1 or more."""
    if not isinstance(batch_size, int) or batch_size < 1:
        raise UserError(f"batch_size must be a whole number of 1 or more; got {batch_size}")


def read_images(images: Any) -> Images:
    """Convert a tensor, an array, or a list of tensors or arrays to a float32 tensor.

    Raises:
        UserError: The images are not numbers.
    """
    if isinstance(images, Tensor) and not images.is_complex():
        return images.to(torch.float32)
    try:
        return torch.from_numpy(read_array("images", images, "(B, 3, H, W)").astype(np.float32))
    except ValueError as error:
        raise UserError(str(error)) from error


def check_frame(images: Images) -> None:
    """Raise UserError if images are not finite or far outside [0, 1]. Perturbed images may be slightly outside."""
    if not images.abs().amax() < 10:  # images from 0 to 255 exceed these limits
        raise UserError("images must be finite and in [0, 1], before the model's normalisation")


def row_counts(height: int, width: int, steps: int | None = None) -> np.ndarray:
    """Return pixel counts from 0 to H*W in steps of an image row (H + 1 points) or in `steps` equal steps, rounded."""
    if steps is None:
        return np.arange(height + 1) * width
    if not 1 <= steps <= height * width:
        raise UserError(f"steps must be between 1 and the number of pixels ({height * width}); got {steps}")
    return np.rint(np.arange(steps + 1) * (height * width / steps)).astype(np.int64)


def fraction_counts(height: int, width: int, fractions: Sequence[float]) -> np.ndarray:
    """Return the number of pixels in each fraction of an image, rounded half to even."""
    return np.rint(np.asarray(fractions) * (height * width)).astype(np.int64)


def recognised_at(curves: Curves, labels: np.ndarray, keep: str, reference: str, exposure: float | None) -> np.ndarray:
    """Return `Curves.recognised`, float64 (B, P), at `EXPOSURES` (fractions of the pixels) or at one exposure."""
    counts = fraction_counts(curves.height, curves.width, _exposures(exposure))
    return curves.recognised(labels, keep, reference, counts)


def right_classes(labels: np.ndarray, classes: int) -> np.ndarray:
    """Return the correct classes, Bool (B, K), from one class per image (B,) or from a table Bool (B, K).

    Raises:
        UserError: A class does not exist.
    """
    labels = np.asarray(labels)
    if labels.ndim == 1:
        return one_hot(torch.from_numpy(labels), classes).numpy().astype(bool)
    if labels.shape[1] != classes:
        raise UserError(
            f"the labels have {labels.shape[1]} classes, but the classifier has {classes}; pass one column per class"
        )
    return labels.astype(bool)


def exposure_names(options: dict[str, Any], classifier: object) -> list[str]:
    """Return the names of the parts of `recognised_at`, such as 0 and 0.05."""
    return [f"{exposure:g}" for exposure in _exposures(options["exposure"])]


def exposure_area(values: np.ndarray, options: dict[str, Any]) -> np.ndarray:
    """Return the area under `recognised_at` over the exposures, (B,), or the value at a single exposure."""
    exposures = _exposures(options["exposure"])
    return values[:, 0] if len(exposures) == 1 else area(values, np.asarray(exposures))


def _exposures(exposure: float | None) -> tuple[float, ...]:
    return EXPOSURES if exposure is None else (exposure,)


def black(classifier: nn.Module, images: Images) -> Images:
    """Return black images."""
    return torch.zeros_like(images)


def mean(classifier: nn.Module, images: Images) -> Images:
    """Return pictures filled with the classifier's normalisation mean, which becomes zero after normalisation."""
    return _mean_of(classifier, images).expand_as(images)


def blurred(classifier: nn.Module, images: Images) -> Images:
    """Blur images with a Gaussian of 11 x 11 pixels and sigma 5, as in RISE's code (Petsiuk et al., 2018).

    That code convolves the normalised image with zero padding of 5 pixels, so pixels beyond the border equal the
    normalisation mean. The kernel is an impulse filtered inside an 11 x 11 window with reflecting edges. The tails are
    folded back into the window, so the kernel is flatter than a truncated Gaussian.
    """
    colour = _mean_of(classifier, images)
    kernel = folded_gaussian(BLUR_SIZE, BLUR_SIGMA).to(images)
    # Division by the standard deviation commutes with the convolution, so only the mean is needed.
    rows = F.conv2d(
        images - colour, kernel.view(1, 1, 1, -1).expand(3, 1, 1, -1), padding=(0, BLUR_SIZE // 2), groups=3
    )
    both = F.conv2d(rows, kernel.view(1, 1, -1, 1).expand(3, 1, -1, 1), padding=(BLUR_SIZE // 2, 0), groups=3)
    return both + colour


def noise(images: Images, seeds: Sequence[int]) -> Images:
    """Return uniform noise in [0, 1). It is drawn for every pixel and channel with the image's seed."""
    drawn = [uniform(seed_of(seed, "noise"), image.numel()) for seed, image in zip(seeds, images, strict=True)]
    return torch.from_numpy(np.stack(drawn)).view(images.shape).to(images)


def farthest(classifier: nn.Module, images: Images) -> Images:
    """Return the pictures in [0, 1] at the greatest L1 distance from the images: 0 for values of 0.5 or more, else 1.

    This is the maximum distance baseline of Sturmfels et al. (2020).
    """
    return (images < 0.5).to(images)


def gaussian(images: Images, seeds: Sequence[int]) -> Images:
    """Return normal noise around each value. It is drawn for every pixel and channel with the image's seed.

    This is the Gaussian baseline of Sturmfels et al. (2020). It is truncated to [0, 1], so that it becomes uniform for
    a large standard deviation. In that paper the standard deviation is an option; this function uses `GAUSSIAN_SIGMA`.
    """
    drawn = [uniform(seed_of(seed, "gaussian"), image.numel()) for seed, image in zip(seeds, images, strict=True)]
    shares = torch.from_numpy(np.stack(drawn)).double().view(images.shape).to(images.device)
    centres = images.double()
    low, high = (special.ndtr((end - centres) / GAUSSIAN_SIGMA) for end in (0, 1))
    values = centres + GAUSSIAN_SIGMA * special.ndtri(low + shares * (high - low))
    return values.clamp(0, 1).to(images)


def inpainted(images: Images, kept: Tensor) -> Images:
    """Fill in the missing pixels of images from the kept pixels, Bool (B, 1, H, W).

    This is pull and push (Gortler et al., The Lumigraph, 1996): kept pixels are averaged over squares with sides of 2,
    4, 8 ... pixels, and a missing pixel gets the colour of the smallest square around it that contains a kept pixel.
    Coarser colours are upsampled bilinearly first, so that no squares are visible. If no pixel is kept, the image is
    black.
    """
    weights = kept.to(images)
    return torch.where(kept, images, _filled(images * weights, weights))


def _filled(sums: Tensor, weights: Tensor) -> Images:
    """Return the colours `sums` / `weights`. Where the weight is 0, the colour comes from a coarser level."""
    height, width = sums.shape[2:]
    known = sums / weights.clamp(min=1e-12)
    if height == width == 1 or bool((weights > 0).all()):
        return known
    smaller = [F.avg_pool2d(part, 2, ceil_mode=True) for part in (sums, weights)]  # the common factor cancels
    coarse = F.interpolate(_filled(*smaller), size=(height, width), mode="bilinear", align_corners=False)
    return torch.where(weights > 0, known, coarse)


def folded_gaussian(size: int, sigma: float) -> Tensor:
    """Return float64 (size,) with sum 1: a unit impulse in a window with reflecting edges, filtered to 4 sigma."""
    reach = torch.arange(-int(4 * sigma + 0.5), int(4 * sigma + 0.5) + 1)
    weights = torch.exp(-0.5 * (reach.double() / sigma) ** 2)
    place = (reach + size // 2) % (2 * size)
    place = torch.where(place < size, place, 2 * size - 1 - place)
    return torch.zeros(size, dtype=torch.float64).index_add_(0, place, weights / weights.sum())


def _mean_of(classifier: nn.Module, images: Images) -> Tensor:
    colour = getattr(classifier, "mean", None)
    if not isinstance(colour, Tensor):
        raise UserError(
            "the references 'blur' and 'mean' need a classifier with a known mean; load the classifier with "
            "load_classifier"
        )
    return colour.to(images).view(1, 3, 1, 1)


FIXED = {
    "black": black,
    "blur": blurred,
    "mean": mean,
    "farthest": farthest,
}  # pictures that depend on the image and the classifier only
DRAWN = {"noise": noise, "linear": slight_noise, "gaussian": gaussian}  # pictures that depend on the image's seed
REFERENCES = get_args(Reference)


def check_steps(*, steps: int | None, **others: object) -> None:
    """Raise UserError if steps is less than 1."""
    if steps is not None and steps < 1:
        raise UserError(f"steps must be at least 1; got {steps}")


def check_exposure(*, exposure: float | None, **others: object) -> None:
    """Raise UserError for an exposure outside [0, 1]."""
    if exposure is not None and not 0 <= exposure <= 1:
        raise UserError(f"exposure must be in [0, 1]; got {exposure}")
