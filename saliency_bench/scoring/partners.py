"""Partners: other samples that a metric looks at beside each sample, such as backgrounds to paste into.

Which ones is a plan over the predictions of all samples, made by `plan` of the metric's module. A sample that the plan
does not name takes no part. The map of a partner is the one that it would get as a sample: its seed is its own.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

import numpy as np
import torch

from saliency_bench.errors import UserError
from saliency_bench.map_sources.map_provider import MapProvider
from saliency_bench.metric import Metric
from saliency_bench.types import Images, Target
from saliency_bench.utils.hashing import hash_of


@dataclass(frozen=True)
class Predictions:
    """What a plan may look at, of all samples that it may choose from.

    seed           of the run
    ids            of the samples
    right          bool (N, K), the classes that are right for each; none of a sample without label
    probabilities  float32 (N, K), NaN where there are none
    activation     what made them of logits
    """

    seed: int
    ids: Sequence[str]
    right: np.ndarray
    probabilities: np.ndarray
    activation: str = "softmax"


@dataclass(frozen=True)
class PartnerPlan:
    """of: {sample: its partners}, by their places among all. identity: a hash of the plan by the ids of the images."""

    of: Mapping[int, tuple[int, ...]]
    identity: str


def plan_of(metric: Metric, predictions: Predictions) -> PartnerPlan:
    """Raises: UserError for a metric whose `plan` raises, or names samples that there are not."""
    found = metric.planned(predictions)
    ids = predictions.ids
    try:
        of = {int(sample): tuple(int(partner) for partner in partners) for sample, partners in found.items()}
        if min(chain(of, *of.values()), default=0) < 0:
            raise IndexError
        named = {ids[sample]: [ids[partner] for partner in own] for sample, own in of.items()}
    except (AttributeError, TypeError, ValueError, IndexError) as error:
        line = f"{metric}: plan must give {{sample: [its partners]}}, whole numbers below {len(ids)}"
        raise UserError(line) from error
    return PartnerPlan({sample: own for sample, own in of.items() if own}, hash_of(sorted(named.items())))


@dataclass(frozen=True)
class PartnerSamples:
    """Samples as partners: ids, images (N, 3, H, W), bool (N, K) of the classes that are right, seeds of their maps."""

    ids: Sequence[str]
    images: Images
    right: np.ndarray
    seeds: Sequence[int]


@dataclass
class Partners:
    """The partners of the samples of a batch, each once however many samples it belongs to.

    images   (N, 3, H, W)
    right    bool (N, K), the classes that are right for them
    of       for each sample of the batch the places of its partners, in the order of the plan
    explain  further maps of them: explain(images, target, places)
    faulty   {sample of the batch: what went wrong with what the metric made of it and its partners}
    """

    ids: Sequence[str]
    images: Images
    right: np.ndarray
    of: Sequence[Sequence[int]]
    explain: MapProvider
    at_once: int = 16
    made: dict[bytes, np.ndarray] = field(default_factory=dict)
    faulty: dict[int, str] = field(default_factory=dict)

    def maps(self, target: Target) -> np.ndarray:
        """Float32 (N, H, W) of the images as they are, target (N, K); made once for all metrics of the batch."""
        key = target.cpu().numpy().tobytes()
        if key not in self.made:
            places = torch.arange(len(self.images)).split(self.at_once)
            self.made[key] = np.concatenate(
                [self.explain(self.images[own], target[own], own.tolist()) for own in places]
            )
        return self.made[key].copy()

    def within(self, of: Sequence[Sequence[int]]) -> "Partners":
        """The same for other samples of the batch."""
        return replace(self, of=of, faulty={})

    def faults(self) -> dict[int, str]:
        """{sample of the batch: what went wrong with it, or with the map of one of its partners}."""
        wrong = self.explain.faulty
        of_maps = {
            sample: f"partner {self.ids[partner]}: {wrong[partner]}"
            for sample, own in enumerate(self.of)
            for partner in own
            if partner in wrong
        }
        return self.faulty | of_maps

    def taken_halved(self) -> int:
        """How often a batch did not fit in memory since this was asked last."""
        halved, self.explain.halved = self.explain.halved, 0
        return halved

    def is_flat(self, sample: int) -> bool:
        """Whether the map of one of the partners of a sample is constant."""
        return not self.explain.flat.isdisjoint(self.of[sample])


@dataclass
class PartnerSource:
    """Where the partners of the samples of a batch come from.

    plans     by metric
    samples   the places of the samples of the batch among all
    load      their places among all -> the samples
    at_once   how many are explained together
    """

    plans: Mapping[Metric, PartnerPlan]
    samples: Sequence[int]
    load: Callable[[Sequence[int]], PartnerSamples]
    at_once: int
    known: dict[tuple[int, ...], Partners] = field(default_factory=dict)

    def takes_part(self, metric: Metric, sample: int) -> bool:
        return self.samples[sample] in self.plans[metric].of

    def of(self, metric: Metric, kept: Sequence[int], provider: Callable[[Sequence[int]], MapProvider]) -> Partners:
        """Those of some samples of the batch; metrics whose partners are the same share their maps."""
        chosen = [self.plans[metric].of[self.samples[sample]] for sample in kept]
        places = tuple(sorted(set(chain.from_iterable(chosen))))
        index = {place: number for number, place in enumerate(places)}
        of = [[index[place] for place in own] for own in chosen]
        if places not in self.known:
            loaded = self.load(places)
            self.known[places] = Partners(
                loaded.ids, loaded.images, loaded.right, of, provider(loaded.seeds), self.at_once
            )
        return self.known[places].within(of)
