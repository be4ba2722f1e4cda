"""Provide the inputs that metrics declare, and compute scores for a batch. This works inside and outside a run."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial

import numpy as np
import torch
from torch import Tensor, nn

from saliency_bench.bound_explainer import Explainer, is_ours, same_directory
from saliency_bench.bound_metric import Metric
from saliency_bench.compute.classifiers.classifier import RefusedImagesError
from saliency_bench.compute.maps.map_provider import ExplainerRaisedError, MapProvider, reason_of
from saliency_bench.compute.scoring.partners import Partners, PartnerSource
from saliency_bench.compute.scoring.perturbation import Curves
from saliency_bench.compute.targets.class_groups import ClassGroups
from saliency_bench.errors import UserError
from saliency_bench.maps import is_flat, is_tied, mean_of_parts, normalise
from saliency_bench.score_notes import (
    MARKS,
    NO_LABEL,
    NO_PART,
    NO_PROBABILITIES_CHANGED,
    PEAKED,
    TIED,
    has_parts_only,
    lacks,
    reason_for,
)
from saliency_bench.types import Column, Images, Maps, Target

Value = float | None
HALF_OF_RANGE = 0.5  # threshold of metrics that compare a region
# Options that make the threshold of a metric a share of a map's range.
OF_RANGE = {"normalise": True, "salient": "range", "by": "value"}
PEAKED_SHARE = 0.01  # share of the pixels; scores with a smaller region above the threshold get a remark


@dataclass
class ScoredBatch:
    """Scores of one metric for a batch.

    Attributes:
        values: Score of each sample; None for a sample without a score.
        reasons: For each sample, None, the reason for its missing score, or a remark on its score.
        parts: {name: value of each sample, or None}.
        part_reasons: Reason for each missing value of a part, in the same form as `parts`.
        faulty: {sample: error}. Errors that are due to the data or to the metric's definition are left out.
        raised: Whether the metric, or an explainer or network that it called, raised an error.
    """

    values: list[Value]
    reasons: list[str | None]
    parts: dict[str, list[Value]] = field(default_factory=dict)
    part_reasons: dict[str, list[str | None]] = field(default_factory=dict)
    faulty: dict[int, str] = field(default_factory=dict)
    raised: bool = False

    def fail(self, faulty: dict[int, str]) -> None:
        """Record errors as the reasons of samples that have no other reason yet."""
        self.faulty = {sample: reason for sample, reason in faulty.items() if self.reasons[sample] is None}
        for sample, reason in self.faulty.items():
            self.reasons[sample] = reason

    def mark(self, reason: str) -> None:
        """Add a remark to all existing scores."""
        for sample, value in enumerate(self.values):
            if value is not None or has_parts_only(self.reasons[sample]):
                self.reasons[sample] = MARKS.join(filter(None, (self.reasons[sample], reason)))


@dataclass(frozen=True)
class OtherModel:
    """Second classifier for the same images. K is the number of its classes.

    Attributes:
        classifier: The classifier.
        logits: Logits (B, K) of the images, on the CPU.
        labels: Correct classes of each image, Bool (B, K).
        lacking: For each sample, None or the reason why it has no prediction or no label.
    """

    classifier: nn.Module
    logits: Tensor
    labels: np.ndarray
    lacking: list[str | None]

    @property
    def target(self) -> Target:
        """Return the target of the model's maps, (B, K), with weight 1 for each correct class."""
        return torch.from_numpy(self.labels).float()

    def part(self, kept: Sequence[int]) -> "OtherModel":
        """Return an `OtherModel` for these samples only."""
        lacking = [self.lacking[sample] for sample in kept]
        return OtherModel(self.classifier, self.logits[kept], self.labels[kept], lacking)


@dataclass
class MetricInputs:
    """Inputs of metrics (`metric.INPUTS`) for a batch and one explainer. They are computed on first use.

    Attributes:
        classifier: The network.
        explainer: Explainer with the run's seed.
        images: Images (B, 3, H, W).
        target: Weights (B, K) of the classes that the maps explain.
        logits: Logits of the images, on the CPU.
        seed_for: Function (sample, purpose) -> seed of the sample's random draws.
        maps: Maps of the unchanged images; None if no metric needs them.
        masks: Masks, Bool (B, H, W).
        unusable: For each sample, None or the reason why it has no usable mask.
        groups: Groups of classes.
        labels: Correct classes of each image, Bool (B, K). All are False for an image without a label.
        columns: {name: additional column of the dataset}.
        other: Second classifier.
        partners: Source of the samples' partners, for metrics with a plan.
        faults: {sample: reason why no metric can score it}.
        map_faults: {sample: error in its map}. Metrics that request all their maps themselves ignore these errors.
        halved: Number of times that a batch did not fit in memory while maps for metrics were computed.
        run_seed: Seed of random draws that all samples share.
        retrained: {retraining metric: classes (B, P) that its networks predict for the images}.
    """

    classifier: nn.Module
    explainer: Explainer
    images: Images
    target: Target
    logits: Tensor
    seed_for: Callable[[int, str], int]
    maps: Maps | None = None
    masks: np.ndarray | None = None
    unusable: list[str | None] | None = None
    groups: ClassGroups | None = None
    labels: np.ndarray | None = None
    columns: dict[str, Column] = field(default_factory=dict)
    other: OtherModel | None = None
    partners: PartnerSource | None = None
    faults: dict[int, str] = field(default_factory=dict)
    map_faults: dict[int, str] = field(default_factory=dict)
    halved: int = 0
    run_seed: int = 0
    retrained: dict[Metric, np.ndarray] = field(default_factory=dict)

    @cached_property
    def curves(self) -> Curves:
        """Probabilities along perturbation paths, shared by all metrics."""
        return self._new_curves()

    def _new_curves(self) -> Curves:
        """Return a `Curves` object with an empty cache."""
        assert self.maps is not None
        images, target, maps = self.images.clone(), self.target.clone(), self.maps.clone()
        return Curves(self.classifier, images, target, maps, self._seeds("noise"))

    @cached_property
    def flat(self) -> np.ndarray:
        """Return whether each map is constant, Bool (B,)."""
        assert self.maps is not None
        return is_flat(self.maps.cpu().numpy())

    @cached_property
    def tied(self) -> np.ndarray:
        """Return whether more than a tenth of a map's pixels are ties, Bool (B,). It is False for a constant map."""
        assert self.maps is not None
        return is_tied(self.maps.cpu().numpy())

    @cached_property
    def peaked(self) -> np.ndarray:
        """Return whether less than `PEAKED_SHARE` of a map's values are above the midpoint of its range, Bool (B,).

        Constant maps are not peaked.
        """
        assert self.maps is not None
        above = normalise(self.maps.cpu().numpy()) > HALF_OF_RANGE
        return (above.mean(axis=(1, 2)) < PEAKED_SHARE) & ~self.flat

    @cached_property
    def maps_of_other(self) -> tuple[np.ndarray, dict[int, str]]:
        """Return the maps for the other classifier and its target, and {sample: error in its map}."""
        assert self.other is not None
        explain = MapProvider(self.explainer, self.classifier, self._seeds("explain"))
        maps = explain(self.images, self.other.target, classifier=self.other.classifier)
        self.halved += explain.halved
        return maps, explain.faulty

    def _seeds(self, purpose: str) -> list[int]:
        return [self.seed_for(sample, purpose) for sample in range(len(self.images))]

    def score(self, metric: Metric) -> ScoredBatch:
        """Return a metric's scores and, for undefined scores, the reasons.

        If the map is constant, or if the metric adds a remark to a score, the score has both a value and a reason.
        """
        count = len(self.images)
        reasons = list(self.unusable) if "masks" in metric.inputs and self.unusable else [None] * count
        if "labels" in metric.inputs and self.labels is not None:
            reasons = [reason if row.any() else NO_LABEL for row, reason in zip(self.labels, reasons, strict=True)]
        for lacking in self._lacking(metric):
            reasons = [reason or lack for reason, lack in zip(reasons, lacking, strict=True)]
        if self.partners is not None and "partners" in metric.inputs:
            takes = [self.partners.takes_part(metric, sample) for sample in range(count)]
            reasons = [reason if part else NO_PART for part, reason in zip(takes, reasons, strict=True)]
        faults = (self.map_faults if metric.asks_of_target else {}) | self.faults
        reasons = [faults.get(sample, reason) for sample, reason in enumerate(reasons)]
        # A metric of curves receives the whole batch, because it shares passes with other metrics.
        scored = [sample for sample, reason in enumerate(reasons) if reason is None or "curves" in metric.inputs]
        names = metric.parts(self.classifier)
        result = ScoredBatch([None] * count, reasons, {name: [None] * count for name in names})
        if scored:
            self._fill(result, metric, scored, names)
        result.part_reasons = {name: _part_reasons(metric, result, values) for name, values in result.parts.items()}
        return result

    def _lacking(self, metric: Metric) -> Iterator[list[str | None]]:
        """Yield one list per column and one for the other classifier: why each sample lacks this input, or None."""
        for name in metric.declaration.columns:
            yield self.columns[name].lacking if name in self.columns else [lacks(name)] * len(self.images)
        if "other" in metric.inputs and self.other is not None:
            yield self.other.lacking

    def _fill(self, result: ScoredBatch, metric: Metric, scored: list[int], names: Sequence[str]) -> None:
        """Fill in the score of each sample, or the reason why it has none."""
        explain = self._provider(scored, metric.asks_of_target)
        try:
            inputs = self._inputs(metric, scored, explain)
            with same_directory():
                scores, parts, marked = metric.checked(inputs, len(scored), names)
        except ExplainerRaisedError as error:
            result.raised = True
            return result.fail(dict.fromkeys(scored, str(error)))
        except UserError as error:
            if not isinstance(error, RefusedImagesError):
                raise
            result.raised = True
            return result.fail(dict.fromkeys(scored, f"the model raised an error for a changed image: {error}"))
        except ValueError as error:  # metrics that do not import the core raise ValueError
            raise UserError(f"{metric}: {error}") from error
        except Exception as error:  # from the network, for a picture that the metric created
            result.raised = True
            return result.fail(dict.fromkeys(scored, reason_of(error, "the metric")))
        self.halved += explain.halved
        faulty = explain.faulty
        partners = inputs.get("partners")
        if isinstance(partners, Partners):
            self.halved += partners.taken_halved()
            faulty = faulty | partners.faults()
        counts = scores if metric.aggregate is None or parts is None else mean_of_parts(parts)
        if isinstance(curves := inputs.get("curves"), Curves):
            faulty = faulty | dict.fromkeys(curves.lost(counts), NO_PROBABILITIES_CHANGED)
        result.fail({scored[index]: reason for index, reason in faulty.items()})
        for index, sample in enumerate(scored):
            if result.reasons[sample] is None:
                value = _finite(scores[index])
                mark = metric.declaration.mark if marked is not None and marked[index] else ""
                if "curves" in metric.inputs and self.tied[sample]:
                    mark = MARKS.join(filter(None, (mark, TIED)))
                if _goes_by_half_of_range(metric) and self.peaked[sample]:
                    mark = MARKS.join(filter(None, (mark, PEAKED)))
                flat = self._is_flat(metric, partners if isinstance(partners, Partners) else explain, index, sample)
                parts_only = value is None and bool(np.isfinite(counts[index]))
                result.values[sample] = value
                result.reasons[sample] = reason_for(value, flat, metric.declaration.undefined, mark, parts_only)
                for column, values in enumerate(result.parts.values()):
                    values[sample] = None if parts is None else _finite(parts[index, column])

    def _is_flat(self, metric: Metric, explain: MapProvider | Partners, index: int, sample: int) -> bool:
        """Return whether the scored map, or a map that the metric requested, is constant."""
        if isinstance(explain, Partners):
            return explain.is_flat(index)
        if "explain" in metric.inputs and not {"maps", "curves"} & set(metric.inputs):
            return index in explain.flat
        return bool(self.flat[sample])

    def _provider(self, kept: list[int], asks_of_target: bool) -> MapProvider:
        """Return a provider of additional maps for these samples. It reuses the maps of unchanged images."""
        seeds = self._seeds("explain")
        first = None
        if self.maps is not None and (asks_of_target or not self.map_faults.keys() & set(kept)):
            whole = len(kept) == len(self.images)
            part = slice(None) if whole else kept
            first = self.images[part].clone(), self.target[part].clone(), self.maps[part].clone()
        return MapProvider(self.explainer, self.classifier, [seeds[sample] for sample in kept], first)

    def _inputs(self, metric: Metric, kept: list[int], explain: MapProvider) -> dict[str, object]:
        """Return {parameter of the metric: input} for these samples. The inputs are copies."""
        whole = len(kept) == len(self.images)
        # Use the same tensors as for the first maps, so that requests for these maps are recognised.
        images, target, maps = explain.first or (
            (self.images.clone(), self.target.clone(), None) if whole else (self.images[kept], self.target[kept], None)
        )
        inputs: dict[str, Callable[[], object]] = {
            "maps": lambda: None if maps is None else maps.cpu().numpy().copy(),
            "masks": lambda: None if self.masks is None else self.masks[kept],
            # Bundled metrics share curves and their passes. Each of the user's metrics gets separate curves.
            "curves": lambda: self.curves if is_ours(metric.function) else self._new_curves(),
            "classifier": lambda: self.classifier,
            "images": lambda: images,
            "target": lambda: target,
            "logits": lambda: self.logits[kept],
            "labels": lambda: None if self.labels is None else self._of_labels(metric, kept),
            "groups": lambda: self.groups,
            "explain": lambda: explain,
            "partners": lambda: self._partners(metric, kept),
            "seeds": lambda: [self.seed_for(sample, metric.name) for sample in kept],
            "other": lambda: None if self.other is None else self.other.part(kept),
            "columns": lambda: {name: self.columns[name].part(kept).values for name in metric.declaration.columns},
            "run_seed": lambda: self.run_seed,
            "retrained": lambda: self._of_networks(metric)[kept],
        }
        if self.other is not None and {"other", "explain"} <= set(metric.inputs):
            made, faulty = self.maps_of_other
            target = self.other.target[kept].to(images.device)
            explain.of_other = self.other.classifier, images, target, torch.from_numpy(made[kept])
            explain.faulty |= {index: faulty[sample] for index, sample in enumerate(kept) if sample in faulty}
        return {need: inputs[need]() for need in metric.inputs}

    def _partners(self, metric: Metric, kept: list[int]) -> Partners:
        assert self.partners is not None
        return self.partners.partners_of(metric, kept, partial(MapProvider, self.explainer, self.classifier))

    def _of_networks(self, metric: Metric) -> np.ndarray:
        if metric not in self.retrained:
            raise UserError(
                f"{metric.name} trains networks on a whole dataset, which is only possible in a run; use "
                "saliency_bench.run"
            )
        return self.retrained[metric]

    def _of_labels(self, metric: Metric, kept: list[int]) -> np.ndarray:
        """Return the labels of these samples, or of the whole batch for a metric of curves."""
        assert self.labels is not None
        return self.labels.copy() if "curves" in metric.inputs else self.labels[kept]


def _part_reasons(metric: Metric, result: ScoredBatch, values: list[Value]) -> list[str | None]:
    """Return the reason for each missing part: the sample's reason, or the metric's reason for a missing part."""
    return [
        None
        if value is not None
        else reason_for(None, False, metric.declaration.absent)
        if score is not None or has_parts_only(reason)
        else reason
        for value, score, reason in zip(values, result.values, result.reasons, strict=True)
    ]


def _goes_by_half_of_range(metric: Metric) -> bool:
    """Return whether a metric, with its options, scores the pixels above the midpoint of the map's range."""
    options = dict(metric.options)
    of_range = any(options.get(key) == value for key, value in OF_RANGE.items())
    return of_range and options.get("threshold") == HALF_OF_RANGE and bool({"maps", "curves"} & set(metric.inputs))


def _finite(value: float) -> Value:
    return float(value) if np.isfinite(value) else None
