"""Compose explainers: functions that take an explainer and return a new explainer. Compositions can be nested.

    absolute(explainer)                    |map|
    positive(explainer)                    max(map, 0)
    smoothed(explainer, draws, sigma)      mean map over noisy copies of the image (SmoothGrad, Smilkov et al., 2017)
    blurred(explainer, sigma)              the map blurred by a Gaussian, so that it localises less (a control)
    over_layers(explainer, layers)         mean of the maps at several layers, each divided by its largest magnitude

`smoothed("gradient:reduction=sum", draws=50)` equals `smoothgrad:reduction=sum`, but passes one noisy copy of each
image at a time.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b

import torch
from scipy.ndimage import gaussian_filter
from torch import Tensor

from saliency_bench.bound_explainer import Explainer, as_explainer
from saliency_bench.compute.classifiers.classifier import Classifier
from saliency_bench.declarations import ExplainerDeclaration
from saliency_bench.errors import UserError
from saliency_bench.types import Averaged, Images, Maps, Target
from saliency_bench.utils.seeds import normals, seed_of

VERSION = 1

Inner = str | Explainer | Callable[..., Maps]


@dataclass(frozen=True)
class Composed:
    """Explainer that calls `how(explainer, classifier, images, target, seeds, **parameters)`, with the run's `seed`."""

    how: Callable[..., Maps | Averaged]
    explainer: Explainer
    parameters: tuple[tuple[str, object], ...] = ()

    def __call__(
        self, classifier: Classifier, images: Images, target: Target, *, seeds: list[int], seed: int | None = None
    ) -> Maps | Averaged:
        """Return the maps of the composed explainer."""
        inner = self.explainer if seed is None else self.explainer.seeded(seed)
        return self.how(inner, classifier, images, target, seeds, **dict(self.parameters))


def absolute(explainer: Inner) -> Explainer:
    """Return an explainer that takes the absolute values of another explainer's maps.

    The absolute values show how much each pixel matters, for or against the target.
    """
    return _composed("absolute", _absolute, explainer)


def positive(explainer: Inner) -> Explainer:
    """Return an explainer that sets negative values in another explainer's maps to 0.

    The new maps show only evidence for the target.
    """
    return _composed("positive", _positive, explainer)


def blurred(explainer: Inner, sigma: float = 0.1) -> Explainer:
    """Return an explainer that blurs another explainer's maps with a Gaussian, so that they localise less precisely.

    The standard deviation of the Gaussian is sigma times the image's shorter side. Blurred maps are the control of
    retraining metrics: if they score better, the metric does not reward precise localisation (Brocki and Chung, Feature
    Perturbation Augmentation for Reliable Evaluation of Importance Estimators, 2023).

    Raises:
        UserError: sigma is not a finite number above 0.
    """
    if not 0 < sigma < float("inf"):
        raise UserError(f"blurred needs a finite sigma above 0; got {sigma}")
    return _composed("blurred", _blurred, explainer, sigma=float(sigma))


def smoothed(explainer: Inner, draws: int = 50, sigma: float = 0.15) -> Explainer:
    """Return an explainer that averages the maps of `draws` noisy copies of each image.

    The noise is normal, with a standard deviation of sigma times (max - min) of the normalised image. It is drawn with
    each sample's seed, as in smoothgrad. The number of passes is `draws` times the explainer's number of passes.

    Raises:
        UserError: `draws` is below 1, or sigma is negative or infinite.
    """
    if draws < 1 or not 0 <= sigma < float("inf"):
        raise UserError(f"smoothed needs draws >= 1 and a finite sigma >= 0; got {draws} and {sigma}")
    return _composed("smoothed", _smoothed, explainer, draws=draws, sigma=float(sigma))


def noisy_copies(
    classifier: Classifier, images: Images, sigma: float, seeds: list[int], draws: int
) -> Callable[[Tensor, Tensor], Images]:
    """Return a function that draws noisy copies of images.

    The function takes `samples`, Int (n,) or (1,), and `numbers`, Int (n,). It returns copies, Float (n, 3, H, W). The
    i-th result is copy numbers[i] (from 0 to `draws` - 1) of image samples[i]. The noise is normal, with a standard
    deviation of sigma times (max - min) of the normalised image. It is drawn with each sample's seed.
    """
    normalised = ((images - classifier.mean) / classifier.std).flatten(1)
    span = (normalised.amax(dim=1) - normalised.amin(dim=1)).view(-1, 1, 1, 1)
    width = sigma * span * classifier.std  # (B, 3, 1, 1)

    drawn = [[seed_of(seed, "smoothgrad", number) for number in range(draws)] for seed in seeds]
    table = torch.tensor(drawn).to(images.device)  # (B, draws)

    def noisy(samples: Tensor, numbers: Tensor) -> Images:
        noise = normals(table[samples, numbers], images[0].numel()).view(-1, *images.shape[1:])
        return images[samples] + width[samples] * noise

    return noisy


def over_layers(explainer: Inner, layers: Sequence[str]) -> Explainer:
    """Return an explainer that averages the maps of several `layers` (names of modules).

    `explainer` must have a `layer` option. Each map is first divided by its largest magnitude. Otherwise the layer with
    the largest values would dominate.

    Raises:
        UserError: The explainer has no `layer` option, or there are no layers.
    """
    inner, layers = as_explainer(explainer), tuple([layers] if isinstance(layers, str) else layers)
    if "layer" not in dict(inner.options):
        raise UserError(f"{inner.name} has no option 'layer'; use an explainer that has one, such as gradcam")
    if not layers:
        raise UserError("over_layers needs at least one layer")
    return _composed("over_layers", _over_layers, inner, layers=layers)


def _composed(kind: str, how: Callable[..., Maps | Averaged], explainer: Inner, **parameters: object) -> Explainer:
    inner = as_explainer(explainer)
    text = ",".join(f"{key}={_as_text(value)}" for key, value in parameters.items())
    version = json.dumps([VERSION, kind, parameters, inner.identity], sort_keys=True)
    return Explainer(
        name=f"{kind}({inner}{',' if text else ''}{text})",
        function=Composed(how, inner, tuple(sorted(parameters.items()))),
        options=(("seed", None),) if dict(inner.options).get("seed", 0) is None else (),
        version=blake2b(version.encode(), digest_size=8).hexdigest(),
        declaration=ExplainerDeclaration(needs=inner.declaration.needs),
    )


def _as_text(value: object) -> str:
    return "+".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _absolute(inner: Explainer, classifier: Classifier, images: Images, target: Target, seeds: list[int]) -> Maps:
    return inner(classifier, images, target, seeds=seeds).abs()


def _positive(inner: Explainer, classifier: Classifier, images: Images, target: Target, seeds: list[int]) -> Maps:
    return inner(classifier, images, target, seeds=seeds).relu()


def _blurred(
    inner: Explainer, classifier: Classifier, images: Images, target: Target, seeds: list[int], sigma: float
) -> Maps:
    maps = inner(classifier, images, target, seeds=seeds)
    width = sigma * min(maps.shape[1:])
    values = gaussian_filter(maps.double().cpu().numpy(), (0, width, width), mode="nearest")
    return torch.from_numpy(values).to(maps)


def _smoothed(
    inner: Explainer, classifier: Classifier, images: Images, target: Target, seeds: list[int], draws: int, sigma: float
) -> Averaged:
    noisy = noisy_copies(classifier, images, sigma, seeds, draws)
    every = torch.arange(len(images), device=images.device)
    total, even = (images.new_zeros(len(images), *images.shape[2:]) for _ in range(2))
    for draw in range(draws):
        maps = inner(classifier, noisy(every, torch.full_like(every, draw)), target, seeds=seeds)
        total += maps
        even += maps if draw % 2 == 0 else 0
    return Averaged(total / draws, even, total - even, draws)


def _over_layers(
    inner: Explainer, classifier: Classifier, images: Images, target: Target, seeds: list[int], layers: tuple[str, ...]
) -> Maps:
    total = images.new_zeros(len(images), *images.shape[2:])
    for layer in layers:
        options = tuple(sorted((dict(inner.options) | {"layer": layer}).items()))
        maps = replace(inner, options=options)(classifier, images, target, seeds=seeds)
        total += maps / maps.abs().amax(dim=(1, 2), keepdim=True).clamp_min(torch.finfo(maps.dtype).tiny)
    return total / len(layers)
