"""Provide partners: other samples that a metric needs for each sample, such as backgrounds to paste into.

The `plan` function of the metric's module chooses partners from the predictions of all samples. A sample that is not in
the plan has no score. A partner is explained with its own seed, so its map is the same as when the partner
itself is scored.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

import numpy as np
import torch

from saliency_bench.bound_metric import Metric
from saliency_bench.compute.maps.map_provider import MapProvider
from saliency_bench.errors import UserError
from saliency_bench.types import Images, Target
from saliency_bench.utils.hashing import hash_of


@dataclass(frozen=True)
class Predictions:
    """Predictions for all samples. A plan uses them to choose partners.

    Attributes:
        seed: Seed of the run.
        ids: Ids of the samples.
        right: Correct classes of each sample, Bool (N, K). All are False for a sample without a label.
        probabilities: Probabilities, Float32 (N, K), NaN for a sample without probabilities.
        activation: Activation that was applied to the logits.
    """

    seed: int
    ids: Sequence[str]
    right: np.ndarray
    probabilities: np.ndarray
    activation: str = "softmax"


@dataclass(frozen=True)
class PartnerPlan:
    """The partners of each sample.

    Attributes:
        partners: {sample: partners}. All are positions among the samples of the run.
        identity: Hash of the plan, computed from the ids of the images.
    """

    partners: Mapping[int, tuple[int, ...]]
    identity: str


def plan_of(metric: Metric, predictions: Predictions) -> PartnerPlan:
    """Return the partner plan of a metric.

    Raises:
        UserError: The metric's `plan` raises an error or returns samples that do not exist.
    """
    planned = metric.planned(predictions)
    ids = predictions.ids
    try:
        partners_of = {int(sample): tuple(int(partner) for partner in partners) for sample, partners in planned.items()}
        if min(chain(partners_of, *partners_of.values()), default=0) < 0:
            raise IndexError
        named = {ids[sample]: [ids[partner] for partner in places] for sample, places in partners_of.items()}
    except (AttributeError, TypeError, ValueError, IndexError) as error:
        line = (
            f"{metric}: plan must return {{sample: [its partners]}}, where samples and partners are whole numbers "
            f"below {len(ids)}"
        )
        raise UserError(line) from error
    return PartnerPlan(
        {sample: places for sample, places in partners_of.items() if places}, hash_of(sorted(named.items()))
    )


@dataclass(frozen=True)
class PartnerSamples:
    """N partner samples: ids, images (N, 3, H, W), correct classes as bool (N, K), and the seeds for their maps."""

    ids: Sequence[str]
    images: Images
    right: np.ndarray
    seeds: Sequence[int]


@dataclass
class Partners:
    """The partners of a batch: other images that a metric needs for the samples. Shared partners are included once.

    Attributes:
        ids: Ids of the partners' images.
        images: Images (N, 3, H, W).
        right: Correct classes of the partners, Bool (N, K).
        places: For each sample of the batch, the indices of its partners in `ids` and `images`, in the order of the
            plan.
        explain: Provider of the partners' maps: explain(images, target, places).
        at_once: Number of partners that are explained together.
        made: Cache of computed maps, by target.
        faulty: {sample of the batch: error for a picture that the metric created from the sample and its partners}.
    """

    ids: Sequence[str]
    images: Images
    right: np.ndarray
    places: Sequence[Sequence[int]]
    explain: MapProvider
    at_once: int = 16
    made: dict[bytes, np.ndarray] = field(default_factory=dict)
    faulty: dict[int, str] = field(default_factory=dict)

    def maps(self, target: Target) -> np.ndarray:
        """Return the partners' maps for a target (N, K), float32 (N, H, W). They are computed once for all metrics."""
        key = target.cpu().numpy().tobytes()
        if key not in self.made:
            batches = torch.arange(len(self.images)).split(self.at_once)
            self.made[key] = np.concatenate(
                [self.explain(self.images[batch], target[batch], batch.tolist()) for batch in batches]
            )
        return self.made[key].copy()

    def within(self, places: Sequence[Sequence[int]]) -> "Partners":
        """Return these partners with different `places`, for other samples of the batch."""
        return replace(self, places=places, faulty={})

    def faults(self) -> dict[int, str]:
        """Return {sample of the batch: error}, where the error concerns the sample or a map of one of its partners."""
        wrong = self.explain.faulty
        of_maps = {
            sample: f"partner {self.ids[partner]}: {wrong[partner]}"
            for sample, places in enumerate(self.places)
            for partner in places
            if partner in wrong
        }
        return self.faulty | of_maps

    def taken_halved(self) -> int:
        """Return the number of times that a batch did not fit in memory since the last call."""
        halved, self.explain.halved = self.explain.halved, 0
        return halved

    def is_flat(self, sample: int) -> bool:
        """Return whether a partner of this sample has a constant map."""
        return not self.explain.flat.isdisjoint(self.places[sample])


@dataclass
class PartnerSource:
    """Loads the partners that metrics need for the samples of a batch.

    Attributes:
        plans: {metric: partner plan}.
        samples: Positions of the batch's samples among all samples.
        load: Function that loads the samples at the given positions among all samples.
        at_once: Number of partners that are explained together.
        known: Cache of loaded partners.
    """

    plans: Mapping[Metric, PartnerPlan]
    samples: Sequence[int]
    load: Callable[[Sequence[int]], PartnerSamples]
    at_once: int
    known: dict[tuple[int, ...], Partners] = field(default_factory=dict)

    def takes_part(self, metric: Metric, sample: int) -> bool:
        """Return whether the metric's plan has partners for a sample."""
        return self.samples[sample] in self.plans[metric].partners

    def partners_of(
        self, metric: Metric, kept: Sequence[int], provider: Callable[[Sequence[int]], MapProvider]
    ) -> Partners:
        """Return the partners of some samples of the batch. Metrics that use the same partners share the maps."""
        chosen = [self.plans[metric].partners[self.samples[sample]] for sample in kept]
        places = tuple(sorted(set(chain.from_iterable(chosen))))
        index = {place: number for number, place in enumerate(places)}
        inside = [[index[place] for place in of_sample] for of_sample in chosen]
        if places not in self.known:
            loaded = self.load(places)
            self.known[places] = Partners(
                loaded.ids, loaded.images, loaded.right, inside, provider(loaded.seeds), self.at_once
            )
        return self.known[places].within(inside)
