"""Compute an explainer's maps for a batch, and check whether they depend on the other images of the batch.

If a map is not finite or the explainer raises an error, this is recorded as the reason for the missing scores. A strict
run stops instead.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from weakref import WeakSet

import torch
from torch import Tensor

from saliency_bench.bound_explainer import Explainer
from saliency_bench.compute.classifiers.classifier import Classifier
from saliency_bench.compute.maps.map_provider import halving, not_finite, reason_of
from saliency_bench.compute.precomputed import PrecomputedMaps
from saliency_bench.errors import UserError
from saliency_bench.score_notes import NOT_FINITE
from saliency_bench.types import Batch, Images, Maps, Target
from saliency_bench.utils.messages import complain
from saliency_bench.utils.seeds import seed_of
from saliency_bench.utils.untouched import untouched

# Relative to the contrast of a map. The batch size changes only the last bits, 1e-5 of a map's norm. However, these
# bits decide whether a ReLU passes values near zero, which changed the gradient of one photograph by 4e-3.
BATCH_TOLERANCE, FAR = 1e-3, 0.1
FLAT = 1e-2  # lower bound on the contrast, relative to the norm of a map
MIXING = 1e-4  # relative to the norm of the logits or gradient; the batch size changes less than 1e-5 of it in float32


@dataclass(frozen=True)
class Explained:
    """The maps of a batch.

    Attributes:
        maps: Maps, Float (B, H, W), with zeros in place of a map that is not finite; None if the explainer raised an
            error.
        faults: {index in the batch: what is wrong with the map}.
        passes: Number of images passed through the classifier.
        halved: Number of times that the batch was halved to fit in memory.
        reliability: Reliability of each map, as in `MadeMaps`.
        draws: Number of random draws that each map averages, as in `MadeMaps`.
        cells: (height, width) of the maps before upsampling, as in `MadeMaps`.
    """

    maps: Maps | None = None
    faults: dict[int, str] = field(default_factory=dict)
    passes: int = 0
    halved: int = 0
    reliability: list[float | None] = field(default_factory=list)
    draws: list[int] | None = None
    cells: tuple[int, int] | None = None

    @property
    def about(self) -> dict[str, object]:
        """Return what part files record about the maps.

        The result contains the size of the maps before upsampling and whether any value is negative.
        """
        if self.maps is None:
            return {}
        return {"cells": self.cells and list(self.cells), "negative": bool((self.maps < 0).any())}

    def values_of(self, index: int) -> dict[str, float | None]:
        """Return {column of `records.OF_MAP`: value} for the map at this index of the batch."""
        draws = None if self.draws is None else self.draws[index]
        if self.maps is None or index in self.faults:
            return {"draws": draws}
        return {"draws": draws, "reliability": self.reliability[index]}


def explain(
    classifier: Classifier, batch: Batch, explainer: Explainer, target: Target, seed: int, *, strict: bool
) -> Explained:
    """Return the maps of a batch.

    Args:
        classifier: The network.
        batch: The samples.
        explainer: Explainer that computes the maps.
        target: Weights of the classes, (B, K) or (1, K).
        seed: Seed of the run.
        strict: Whether to raise an error for the first map that is faulty.

    Raises:
        UserError: The explainer rejects the network or its options, or a map is faulty and the run is strict.
    """
    seeds = [seed_of(seed, image_id, "explain") for image_id in batch.ids]
    before = classifier.passes
    try:
        made, halved = halving(explainer.seeded(seed), classifier, batch.images, target, seeds)
    except UserError as error:
        raise UserError(f"{explainer}: {error}") from error
    except Exception as error:
        reason = reason_of(error)
        if strict:
            raise UserError(f"{explainer}, {images_text(batch)}: {reason}") from error
        return Explained(None, dict.fromkeys(range(len(batch)), reason), classifier.passes - before)
    maps = made.maps
    bad = not_finite(maps)
    reason = getattr(explainer.function, "not_finite", NOT_FINITE)
    if bad and strict:
        raise UserError(f"{explainer}, image {batch.ids[bad[0]]}: {reason}")
    maps = maps.nan_to_num(0, 0, 0) if bad else maps
    passes, faults = classifier.passes - before, dict.fromkeys(bad, reason)
    return Explained(maps, faults, passes, halved, made.reliability, made.draws, made.cells)


def depends_on_batch(
    classifier: Classifier,
    batch: Batch,
    explainer: Explainer,
    target: Target,
    maps: Maps | None,
    logits: Sequence[float],
    seed: int,
) -> bool:
    """Return whether some images get different maps when they are explained without the other images of the batch.

    An explainer from outside this package explains the first half of the batch again. Tests ensure that the package's
    own explainers do not mix images, so they are checked only if the network mixes images. They then explain single
    images, with a batch size of 1, because the network would also mix the pictures that the explainer derives from an
    image.

    Args:
        classifier: The network.
        batch: The samples.
        explainer: Explainer that computed the maps.
        target: Weights of the classes, (B, K) or (1, K).
        maps: Maps (B, H, W) of the whole batch; None if there are none.
        logits: Logits (K,) of the last image, computed within the batch.
        seed: Seed of the run.
    """
    again, groups = _alone(explainer, len(batch)) if explainer.is_bundled else (explainer, [range(len(batch) // 2)])
    if maps is None or explainer.baseline or isinstance(explainer.function, PrecomputedMaps):
        return False
    if again is explainer and len(groups[0]) in (0, len(batch)):
        return False
    if explainer.is_bundled:
        if not mixes_images(classifier, batch.images, logits):
            return False
        _complain_once(classifier)
    target = target.expand(len(batch), -1)
    seeds = [seed_of(seed, image_id, "explain") for image_id in batch.ids]
    again = again.seeded(seed)
    with classifier.uncounted():
        try:
            others = [
                again(classifier, batch.images[chosen], target[chosen], seeds=[seeds[index] for index in chosen])
                for chosen in map(list, groups)
            ]
        except Exception:  # an exception for fewer images does not show that the maps differ
            return False
    return differ(torch.cat(others), maps[list(chain(*groups))])


_mixing: WeakSet[Classifier] = WeakSet()  # classifiers for which the message was printed


def _complain_once(classifier: Classifier) -> None:
    """Print a warning, once per network, that the network mixes the images of a batch."""
    if classifier not in _mixing:
        _mixing.add(classifier)
        complain(
            f"{classifier.id} mixes the images of a batch (perhaps through batch statistics in its forward pass): the "
            "logits and gradients of an image depend on the other images, and so do metrics that classify many "
            "pictures at once; change the network so that its statistics do not depend on the batch"
        )


def _alone(explainer: Explainer, images: int) -> tuple[Explainer, list[range]]:
    """Return (explainer with a batch size of 1, groups of image indices to explain together).

    An explainer without an option `batch_size` is returned unchanged, and each image is a group.
    """
    chosen = dict(explainer.options)
    if "batch_size" not in chosen:
        return explainer, [range(index, index + 1) for index in range(images)]
    few = dict.fromkeys((0, images - 1))  # first and last image only, because single passes are slow
    options = tuple(sorted((chosen | {"batch_size": 1}).items()))
    return replace(explainer, options=options), [range(index, index + 1) for index in few]


def mixes_images(classifier: Classifier, images: Images, logits: Sequence[float]) -> bool:
    """Return whether the logits or the gradient of an image depend on the other images of its batch.

    The logits of the last image when it is classified alone are compared with its logits in the batch, and with its
    logits in a batch with a darker copy. Explainers may create such copies. In addition, the logits of each of two
    images must have no gradient with respect to the other image.

    Args:
        classifier: The network.
        images: Images (B, 3, H, W).
        logits: Logits (K,) of the last image, computed within the batch.
    """
    last = images[-1:]
    copies = torch.cat([last, last / 2])
    with untouched(classifier), classifier.uncounted():
        try:
            with torch.no_grad():
                alone = torch.cat([classifier(image) for image in copies.split(1)])
                beside = classifier(copies)
        except Exception:  # networks may raise any exception for a single image
            return True
        known = torch.tensor(logits).to(alone)
        if _changes(alone[0], known) or _changes(alone, beside):
            return True
        pair = copies if len(images) == 1 else torch.cat([images[:1], last])
        with torch.enable_grad():
            return _gradients_mix(classifier, pair)


def _gradients_mix(classifier: Classifier, pair: Images) -> bool:
    """Return whether the logits of one image of the pair have a gradient with respect to the other image."""
    pair = pair.clone().requires_grad_()
    try:
        logits = classifier(pair)
        if not logits.requires_grad:
            return False
        weights = torch.arange(1, logits.shape[1] + 1, device=logits.device).cos()  # no logit cancels another
        gradients = [
            torch.autograd.grad(logits[index], pair, weights, retain_graph=True, allow_unused=True)[0]
            for index in (0, 1)
        ]
    except (UserError, RuntimeError):  # the network does not accept images with gradients
        return False
    shares = (
        (gradient[index], gradient[1 - index]) for index, gradient in enumerate(gradients) if gradient is not None
    )
    return any(bool(other.norm() > MIXING * itself.norm()) for itself, other in shares)


def _changes(alone: Tensor, together: Tensor) -> bool:
    """Return whether logits differ by more than `MIXING` times their norm, or are NaN."""
    counts = together.isfinite() | (alone != together)  # a masked-out class has -infinity in both
    change = (alone - together)[counts].norm() / together[counts].norm().clamp(min=1e-30)
    return not bool(change <= MIXING)


def differ(alone: Maps, together: Maps) -> bool:
    """Return whether most maps (B, H, W) differ by more than `BATCH_TOLERANCE`, or any map differs by more than `FAR`.

    Differences are relative to a map's contrast. The contrast is the norm of the map minus its mean, because RISE maps
    are a large constant with small deviations.
    """
    flat = together.flatten(1)
    contrast = (flat - flat.mean(dim=1, keepdim=True)).norm(dim=1)
    least = (FLAT * flat.norm(dim=1)).clamp(min=1e-30)  # differences in the last bits of a flat map are not contrast
    change = (alone - together).flatten(1).norm(dim=1) / contrast.maximum(least)
    return bool((change > BATCH_TOLERANCE).sum() > len(change) / 2) or bool((change > FAR).any())


def images_text(batch: Batch) -> str:
    """Describe a batch by its first and last image id and its size."""
    first, *rest = batch.ids
    return f"images {first} ... {rest[-1]} ({len(batch)} images)" if rest else f"image {first}"
