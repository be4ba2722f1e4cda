"""What maps and scores take on this machine beside the passes that are counted: a batch of each is made and timed.

An explainer or metric whose passes alone take long, such as RISE with 8,000 masks, is not tried: what it does beside
them is little. So is a metric that needs what only a run has.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch
from PIL import Image

from saliency_bench.bound_explainer import Explainer, as_explainer
from saliency_bench.bound_metric import Metric, as_metric
from saliency_bench.compute.classifiers.classifier import Classifier
from saliency_bench.compute.maps.map_provider import MapProvider
from saliency_bench.compute.scoring.inputs import MetricInputs, Other
from saliency_bench.compute.scoring.partners import PartnerSamples, PartnerSource, Predictions, plan_of
from saliency_bench.compute.targets.class_groups import ClassGroups
from saliency_bench.recipes.suites.costs import SIDE, Cost, Speed, cost_of_map, cost_of_score, seconds_per_image
from saliency_bench.target_weights import one_hot
from saliency_bench.types import Images, Maps, Target
from saliency_bench.utils.devices import peak_memory, reset_peak_memory

LONGEST = 3.0  # seconds that the counted passes of a batch may take
ROUNDS = 2
QUICK = "random"  # the explainer whose maps are scored


@dataclass
class OwnWork:
    """Seconds beside the counted passes, and peak memory in bytes, by explainers and by metrics as texts.

    Attributes:
        times: Per map that is made, or scored.
        memory: At the most, while a batch is explained or scored.
    """

    times: dict[str, float] = field(default_factory=dict)
    memory: dict[str, int] = field(default_factory=dict)

    def seconds(self, cost: Cost) -> float:
        """Return the seconds of all maps and scores of a cost."""
        return sum(count * self.times.get(text, 0.0) for text, count in cost.made.items())

    def peak(self, pairs: Iterable[tuple[str, str | None]]) -> int | None:
        """Return the memory that the hungriest of these (explainer, metric) takes; None if none was tried."""
        known = [self.memory[text] for pair in pairs for text in _names(pair) if text in self.memory]
        return max(known, default=None)

    def has_tried(self, pairs: Iterable[tuple[str, str]]) -> bool:
        """Return whether all explainers and metrics of these pairs were tried."""
        return all(text in self.times for pair in pairs for text in _names(pair))

    def measure(self, classifier: Classifier, speed: Speed, pairs: Sequence[tuple[str, str]], batch_size: int) -> None:
        """Try the explainers and metrics of these pairs that were not tried yet."""
        batch = _Batch.drawn(classifier, batch_size)
        quick = cost_of_map(as_explainer(QUICK), batch.side)
        for explainer in (as_explainer(text) for text in dict.fromkeys(text for text, _ in pairs)):
            if (name := str(explainer)) not in self.times:
                cost = cost_of_map(explainer, batch.side)
                self.times[name] = self._beside(name, partial(batch.explain, explainer), cost, speed, batch)
        for metric in (as_metric(text) for text in dict.fromkeys(text for _, text in pairs)):
            if (name := str(metric)) not in self.times:
                cost = cost_of_score(quick, name, batch.side)
                self.times[name] = self._beside(name, partial(batch.score, metric), cost, speed, batch)

    def _beside(self, text: str, work: Callable[[int], object], cost: Cost, speed: Speed, batch: "_Batch") -> float:
        """Return the seconds of a piece of work for one image beside its passes; 0 where it cannot be tried."""
        counted = speed.seconds(cost)[1]
        count = min(len(batch.images), int(LONGEST / counted) if counted else len(batch.images))
        if not count:
            return 0.0
        reset_peak_memory(batch.images.device)
        # Metrics that need another model, people or a retrained network; networks that an explainer cannot explain.
        with suppress(Exception):
            seconds = seconds_per_image(lambda: work(count), count, ROUNDS)[1]
            if peak := peak_memory(batch.images.device):
                self.memory[text] = peak
            return seconds - counted
        return 0.0


def _names(pair: tuple[str, str | None]) -> list[str]:
    """Return an explainer and a metric as costs call them."""
    explainer, metric = pair
    return [str(as_explainer(explainer)), *([str(as_metric(metric))] if metric else [])]


def seconds_of(cost: Cost, speed: Speed, own_work: OwnWork) -> tuple[float, float, float]:
    """Return how long a cost takes here: at the least, probably, at the most."""
    beside = own_work.seconds(cost)
    low, middle, high = (max(end + beside, 0.0) for end in speed.seconds(cost))
    return low, middle, high


@dataclass(frozen=True)
class _Batch:
    """Noise in place of images, of one class, with masks over a quarter."""

    classifier: Classifier
    images: Images
    logits: torch.Tensor
    maps: Maps

    @classmethod
    def drawn(cls, classifier: Classifier, count: int) -> "_Batch":
        """Return a batch as large as the run's."""
        height, width = classifier.prepare([{"image": Image.new("RGB", (SIDE, SIDE))}]).images.shape[2:]
        generator = torch.Generator().manual_seed(0)
        images = torch.rand((count, 3, height, width), generator=generator).to(classifier.device)
        with torch.no_grad():
            logits = classifier(images).float().cpu()
        return cls(classifier, images, logits, torch.rand((count, height, width), generator=generator))

    @property
    def side(self) -> int:
        """Return the side of the images."""
        return self.images.shape[-1]

    @property
    def target(self) -> Target:
        """Return the target of every image, (B, K)."""
        rows = one_hot([0] * len(self.images), self.logits.shape[1])
        return rows.to(self.images.device)

    def explain(self, explainer: Explainer, count: int) -> np.ndarray:
        """Return the maps of so many images."""
        provider = MapProvider(explainer.seeded(0), self.classifier, range(count))
        return provider(self.images[:count], self.target[:count])

    def score(self, metric: Metric, count: int) -> object:
        """Return the scores of so many maps, as a run makes them."""
        images, logits, maps = self.images[:count], self.logits[:count], self.maps[:count]
        labels = np.zeros(logits.shape, bool)
        labels[:, 0] = True
        masks = np.zeros(maps.shape, bool)
        masks[:, : self.side // 2, : self.side // 2] = True
        classes = range(logits.shape[1])
        half = len(classes) // 2
        groups = ClassGroups("halves", (tuple(classes[:half]), tuple(classes[half:])), ("first", "second"))
        scored = MetricInputs(
            classifier=self.classifier, explainer=as_explainer(QUICK).seeded(0), images=images,
            target=self.target[:count], logits=logits, seed_for=lambda index, purpose: index, maps=maps, masks=masks,
            unusable=[None] * count, groups=groups, labels=labels,
            other=Other(self.classifier, logits, labels, [None] * count), partners=self._partners(metric, labels),
        ).score(metric)  # fmt: skip
        if scored.faulty:
            raise ValueError(scored.faulty)
        return scored

    def _partners(self, metric: Metric, labels: np.ndarray) -> PartnerSource | None:
        """Return partners among the same images, for a metric that asks for some."""
        if metric.declaration.plan is None:
            return None
        ids, p = [str(number) for number in range(len(labels))], self.logits[: len(labels)].softmax(dim=1).numpy()
        plan = plan_of(metric, Predictions(0, ids, labels, p))

        def load(places: Sequence[int]) -> PartnerSamples:
            chosen = list(places)
            return PartnerSamples([ids[place] for place in chosen], self.images[chosen], labels[chosen], chosen)

        return PartnerSource({metric: plan}, list(range(len(labels))), load, len(labels))
