"""Define the cells of a run. A cell is one explainer scored with one metric."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from pydantic import ValidationError

from saliency_bench import options
from saliency_bench.bound_explainer import Explainer
from saliency_bench.bound_metric import Metric
from saliency_bench.compute.loaded import Pairs, RunModel, identity_of, metrics_of
from saliency_bench.compute.loading.table import SplitTable
from saliency_bench.compute.scoring.partners import PartnerPlan
from saliency_bench.errors import UserError
from saliency_bench.read.cell import CellKey, bounds, field_line
from saliency_bench.read.identity import PARTNERS, Identity
from saliency_bench.target_weights import TargetRange
from saliency_bench.utils.hashing import hash_of

TRAINED_ON, INITIAL = "set of training images", "initial weights"  # keys that enter the ids of cells


@dataclass(frozen=True)
class Cell:
    """A pair of an explainer and a metric. Each cell becomes one number in the leaderboard.

    Attributes:
        id: Hash of everything that the cell's scores depend on.
        explainer: Explainer that computes the maps.
        metric: Metric that scores the maps.
        target: Range of the target's value. The ranges of some metrics depend on it.
        asked_for: {name: hash} of the metric's additional inputs.
        plan: Partners, that is, the samples that the metric compares each sample with. None if the metric needs no
            partners, or before all samples are classified.
        retrained: Classes (N, P) that P retrained networks predict for the N samples of the run. None if the metric
            retrains no networks, or before the networks are trained.
    """

    id: str
    explainer: Explainer
    metric: Metric
    target: TargetRange
    asked_for: dict[str, str]
    plan: PartnerPlan | None = None
    retrained: np.ndarray | None = None

    @property
    def is_planned(self) -> bool:
        """Return whether the cell's id is known. If the metric needs partners, the id depends on their plan."""
        return self.metric.declaration.plan is None or self.plan is not None

    @cached_property
    def key(self) -> CellKey:
        """Return the description of the cell that is written to files.

        Raises:
            UserError: A name cannot be stored in a results file, for example because it contains a line break.
        """
        try:
            return CellKey(
                cell_id=self.id,
                explainer_id=hash_of(self.explainer.identity),
                explainer=self.explainer.name,
                explainer_options=json.loads(options.text(self.explainer.options)),
                explainer_text=str(self.explainer),
                explainer_version=self.explainer.version,
                baseline=self.explainer.baseline,
                metric=self.metric.name,
                metric_options=json.loads(options.text(self.metric.options)),
                metric_text=str(self.metric),
                metric_version=self.metric.version,
                higher_is_better=self.metric.higher_is_better,
                range=bounds(self.metric.limits(self.target)),
                explainer_about=self.explainer.about,
                metric_about=self.metric.about,
                aggregate=self.metric.aggregate is not None,
                note=self.metric.declaration.note,
                asked_for=self.asked_for,
            )
        except ValidationError as error:
            raise UserError(f"{self.explainer} by {self.metric}: {field_line(error)}") from error


@dataclass(frozen=True)
class KeptMaps:
    """One explainer's maps in a run that stores maps. They are planned and resumed in the same way as cells."""

    explainer: Explainer

    @cached_property
    def id(self) -> str:
        """Return the id of these maps in plans."""
        return hash_of("maps", self.explainer.identity)


Output = Cell | KeptMaps


def cells_of(
    identity: Identity, data: SplitTable, model: RunModel, pairs: Pairs, plans: Mapping[Metric, PartnerPlan]
) -> list[Cell]:
    """Return a cell for every pair of explainer and metric.

    Args:
        identity: Settings that all cells share.
        data: Samples of the run.
        model: Network of the run.
        pairs: Explainers with their metrics.
        plans: {metric that needs partners: partner plan}; empty until all samples are classified.

    Raises:
        UserError: A metric needs groups of classes, but no groups are known for this model.
    """
    metrics = metrics_of(pairs)
    for metric in metrics:
        if "groups" in metric.inputs and model.question.groups is None:
            raise UserError(
                f"{metric.name} needs groups of classes, but no groups are known for this model; use --groups FILE "
                "(JSON {group: [class, ...]}, or CSV with the columns class,group), or leave the metric out"
            )
    target = target_range(identity, model)
    hashes = {metric: _further_inputs(data, model, metric) for metric in metrics}
    hashes |= {metric: hashes[metric] | {PARTNERS: plan.identity} for metric, plan in plans.items()}

    def cell(explainer: Explainer, metric: Metric) -> Cell:
        inputs = hashes[metric]
        cell_id = identity.cell_id(explainer.identity, metric.identity, metric.inputs, inputs)
        return Cell(cell_id, explainer, metric, target, inputs, plans.get(metric))

    return [cell(explainer, metric) for explainer, of_explainer in pairs.items() for metric in of_explainer]


def _further_inputs(data: SplitTable, model: RunModel, metric: Metric) -> dict[str, str]:
    """Return {name: hash} of a metric's additional inputs, without partners."""
    declared, other, base = metric.declaration, model.other, model.retraining.base
    inputs = {f"column {name}": data.contents[name][0] for name in declared.columns if name in data.contents}
    if "other" in metric.inputs and other is not None:
        labels = {other.label_column: other.label_hash}
        inputs["other model"] = hash_of(identity_of(data, other).model_dump(mode="json"), labels)
    inputs |= {TRAINED_ON: model.retraining.trained_on} if declared.keeps else {}
    return inputs | ({INITIAL: base.digest} if base is not None and starts_from_base(metric) else {})


def starts_from_base(metric: Metric) -> bool:
    """Return whether a metric's networks start from the weights that the classifier was fine-tuned from."""
    return bool(metric.declaration.keeps) and dict(metric.options).get("initial") == "base"


def target_range(identity: Identity, model: RunModel) -> TargetRange:
    """Return the range of the target's value. For a file of targets, this is the widest of the targets' ranges."""
    if (known := identity.target_range) is not None:
        return known
    terms = (model.question.rule.by_id or {}).values()
    plus, minus = (max((len(set(getattr(term, side))) for term in terms), default=0) for side in ("plus", "minus"))
    return TargetRange.of_classes(plus, minus, model.classifier.activation)


def explainers_of(cells: Iterable[Cell]) -> list[Explainer]:
    """Return the explainers of these cells without duplicates."""
    return list(dict.fromkeys(cell.explainer for cell in cells))


def outputs_of(cells: Sequence[Cell], keep_maps: bool) -> list[Output]:
    """Return the cells and, if the run stores maps, one `KeptMaps` per explainer."""
    return [*cells, *(KeptMaps(explainer) for explainer in explainers_of(cells) if keep_maps)]
