"""More maps of the explainer that is scored: for another target, of a changed picture, or of another classifier.

A metric that asks for `explain` calls it as explain(images, target) -> maps; seeds, run seed and options are those of
the maps that are scored, so that nothing differs but what the metric changes.
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
    """An explainer failed in a way that has nothing to do with the user; the text is the reason for the records."""


@dataclass
class MapProvider:
    """Maps of the samples 0 to B-1 of one batch: explain(images, target, samples, classifier=None) -> maps.

    classifier  whose predictions are explained unless another one is given; it counts the passes of both
    seeds    of each sample
    first    (images, target, maps) made before; a map asked for again with the same images and the same row of the
             target is not made twice
    of_other (classifier, images, target, maps) made before for another classifier
    faulty   {sample: what went wrong}, such as a map that was not finite (given as zeros)
    flat     samples of which a map was constant
    halved   how often a batch did not fit in memory
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
        """Return float32 (b, H, W), the maps of images (b, 3, H, W) of the given samples for a target (b, K) or (1, K).

        Args:
            images: to explain.
            target: its weights.
            samples: whose images they are; None: all.
            classifier: explained instead of the provider's own; the target is one of its classes.
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
        """Return (target, maps) of these very images, if there are any of this classifier."""
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
        except UserError:  # a refusal by name, which holds for every sample
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
    """Return how many images went through a classifier."""
    return classifier.passes if isinstance(classifier, Classifier) else 0


def reason_of(error: Exception, who: str = "the explainer") -> str:
    """Return the reason of samples for which something raised."""
    return f"{who} raised {described(error)}"


def halving(
    explainer: Explainer, classifier: nn.Module, images: Images, target: Target, seeds: list[int]
) -> tuple[MadeMaps, int]:
    """Return (maps, how often a batch was halved because it did not fit in memory); values may be NaN or infinite."""
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
    """Return the places of maps with a value that is not finite."""
    return (~torch.isfinite(maps).flatten(1).all(dim=1)).nonzero().flatten().tolist()
