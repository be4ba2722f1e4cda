"""Compute additional maps with the scored explainer: for a different target, a changed picture or another classifier.

A metric that needs more than one map per image calls `explain(images, target) -> maps`. Seeds, run seed and options are
the same as for the scored maps, so maps differ only because of the metric's change.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import nn

from saliency_bench.bound_explainer import Explainer, MadeMaps, NotFiniteError
from saliency_bench.compute.classifiers.classifier import Classifier
from saliency_bench.errors import UserError, described
from saliency_bench.maps import is_flat
from saliency_bench.score_notes import NOT_FINITE
from saliency_bench.target_weights import expand
from saliency_bench.types import Images, Maps, Target
from saliency_bench.utils.devices import is_out_of_memory


class ExplainerRaisedError(RuntimeError):
    """An explainer raised an error that the user did not cause. The message is stored as the reason in the records."""


@dataclass
class MapProvider:
    """Computes additional maps for samples 0 to B-1 of a batch: explain(images, target, samples, classifier=None).

    Attributes:
        explainer: Explainer that computes the maps.
        classifier: Classifier that is explained by default. It also counts the passes of any other classifier.
        seeds: Seed of each sample.
        first: Existing (images, target, maps). A map for the same images and target row is not recomputed.
        of_other: Existing (classifier, images, target, maps) for another classifier.
        faulty: {sample: error in its map}, such as a value that is not finite. A faulty map is returned as zeros.
        flat: Samples for which a map was constant.
        halved: Number of times that a batch did not fit in memory.
    """

    explainer: Explainer
    classifier: nn.Module
    seeds: Sequence[int]
    first: tuple[Images, Target, Maps] | None = None
    of_other: tuple[nn.Module, Images, Target, Maps] | None = None
    faulty: dict[int, str] = field(default_factory=dict)
    flat: set[int] = field(default_factory=set)
    halved: int = 0

    def __call__(
        self,
        images: Images,
        target: Target,
        samples: Sequence[int] | None = None,
        classifier: nn.Module | None = None,
    ) -> np.ndarray:
        """Return the maps of images (b, 3, H, W) for a target (b, K) or (1, K), float32 (b, H, W).

        Args:
            images: Images to explain.
            target: Weights of the classes.
            samples: Sample that each image belongs to; None for all samples in order.
            classifier: Classifier to explain instead of the provider's own. `target` then refers to this classifier's
                classes.
        """
        samples = list(range(len(images)) if samples is None else samples)
        target = expand(target, images)
        known = torch.zeros(len(samples), dtype=torch.bool)
        maps = np.zeros((len(samples), *images.shape[2:]), dtype=np.float32)
        made = self._made_before(images, classifier or self.classifier)
        if made is not None and samples == list(range(len(images))):
            known = (made[0] == target).all(dim=1).cpu()
            maps[known.numpy()] = made[1].cpu().numpy()[known.numpy()]
        missing = (~known).nonzero().flatten().tolist()
        if missing:
            lacking = [samples[index] for index in missing]
            maps[missing] = self._made(images[missing], target[missing], lacking, classifier or self.classifier)
        self.flat |= {samples[index] for index in np.flatnonzero(is_flat(maps))}
        return maps

    def _made_before(self, images: Images, classifier: nn.Module) -> tuple[Target, Maps] | None:
        """Return (target, maps) if this classifier already has maps for exactly these image tensors, else None."""
        if classifier is self.classifier and self.first is not None and images is self.first[0]:
            return self.first[1:]
        if self.of_other is not None and classifier is self.of_other[0] and images is self.of_other[1]:
            return self.of_other[2:]
        return None

    def _made(self, images: Images, target: Target, samples: list[int], classifier: nn.Module) -> np.ndarray:
        seeds = [self.seeds[sample] for sample in samples]
        before = _passes(classifier)
        try:
            made, halved = halving(self.explainer, classifier, images, target, seeds)
        except UserError:  # a readable error that concerns every sample
            raise
        except Exception as error:
            raise ExplainerRaisedError(reason_of(error)) from error
        finally:
            if classifier is not self.classifier and isinstance(self.classifier, Classifier):
                self.classifier.passes += _passes(classifier) - before
        self.halved += halved
        maps = made.maps
        bad = not_finite(maps)
        maps[bad] = 0
        self.faulty |= {samples[index]: NOT_FINITE for index in bad}
        return maps.cpu().numpy()


def _passes(classifier: nn.Module) -> int:
    """Return the number of images passed through a classifier."""
    return classifier.passes if isinstance(classifier, Classifier) else 0


def reason_of(error: Exception, who: str = "the explainer") -> str:
    """Return the reason to store in the records if `who` raised an error for a sample."""
    return f"{who} raised {described(error)}"


def halving(
    explainer: Explainer, classifier: nn.Module, images: Images, target: Target, seeds: list[int]
) -> tuple[MadeMaps, int]:
    """Return (maps, number of times that a batch was halved to fit in memory). Maps may contain NaN or infinity."""
    try:
        return explainer.made(classifier, images, target, seeds=seeds), 0
    except NotFiniteError as error:
        return error.made, 0
    except (RuntimeError, MemoryError) as error:
        if len(images) == 1 or not is_out_of_memory(error):
            raise
    middle = len(images) // 2
    parts = [
        halving(explainer, classifier, images[part], target[part], seeds[part])
        for part in (slice(0, middle), slice(middle, None))
    ]
    first, second = (made for made, _ in parts)
    maps, reliability = torch.cat([first.maps, second.maps]), first.reliability + second.reliability
    draws = first.draws and first.draws + (second.draws or [])
    both = replace(first, maps=maps, reliability=reliability, draws=draws)
    return both, 1 + sum(halved for _, halved in parts)


def not_finite(maps: Maps) -> list[int]:
    """Return the indices of maps that contain NaN or infinity."""
    return (~torch.isfinite(maps).flatten(1).all(dim=1)).nonzero().flatten().tolist()
