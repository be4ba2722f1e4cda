"""Define the context of a run and its cells; a cell is one explainer scored by one metric."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import datasets
import numpy as np
import pyarrow as pa
from pydantic import ValidationError

from saliency_bench import options
from saliency_bench.bound_explainer import Explainer
from saliency_bench.bound_metric import Metric
from saliency_bench.compute.classifiers.classifier import Classifier
from saliency_bench.compute.loaded import Retraining, RunQuestion
from saliency_bench.compute.loading.table import SplitTable
from saliency_bench.compute.predictions import StoredPredictions, for_plans
from saliency_bench.compute.reading import OWN_LABEL, ReadBatch, Selection, read_batch, relabelled
from saliency_bench.compute.scoring.partners import PartnerPlan, PartnerSamples, plan_of
from saliency_bench.errors import UserError
from saliency_bench.read.cell import CellKey, bounds, field_line
from saliency_bench.read.identity import PARTNERS, Identity
from saliency_bench.read.manifest import Loaded
from saliency_bench.read.parts import PartFolder, PartNote, RunStore
from saliency_bench.read.public_names import public_name, recorded_name
from saliency_bench.spec import PythonObject, RunSpec
from saliency_bench.target_weights import TargetRange
from saliency_bench.utils.hashing import hash_of
from saliency_bench.utils.mask_values import spelled
from saliency_bench.utils.seeds import seed_of

TRAINED_ON, INITIAL = "set of training images", "initial weights"  # keys that enter the ids of cells


@dataclass(frozen=True)
class Cell:
    """One explainer scored by one metric, which is one number in the leaderboard.

    Attributes:
        id: Hash of everything that the cell's scores depend on.
        explainer: Explainer that computes the maps.
        metric: Metric that scores the maps.
        target: Range of the target's value, on which the ranges of some metrics depend.
        asked_for: {further input of the metric: hash of the input}.
    """

    id: str
    explainer: Explainer
    metric: Metric
    target: TargetRange
    asked_for: dict[str, str]

    @property
    def is_planned(self) -> bool:
        """Return whether the cell's id is known. If the metric needs partners, the id depends on their plan."""
        return self.metric.declaration.plan is None or PARTNERS in self.asked_for

    @cached_property
    def key(self) -> CellKey:
        """Return the description of the cell that is written to files.

        Raises:
            UserError: A name cannot be stored in a results file, for example because of a line break.
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
    """The maps of an explainer in a run that stores maps. Maps are planned and resumed like a cell."""

    explainer: Explainer

    @cached_property
    def id(self) -> str:
        """Return the id of these maps in plans."""
        return hash_of("maps", self.explainer.identity)


Output = Cell | KeptMaps


@dataclass(frozen=True)
class RunContext:
    """Loaded objects and settings of a run.

    Attributes:
        spec: Settings of the run.
        out: Absolute path of the run's folder, because an explainer may change the working directory.
        explainers: Explainers to run.
        metrics: Metrics to score with.
        data: Split of the dataset, with its samples in the order of the run.
        question: Classes, labels and target rule for predicting and explaining samples.
        classifier: The network.
        columns: {dataset column that a metric needs: hash of its content}.
        selection: Samples to explain; None for all.
        maps: {explainer id: entry in `spec.maps`} of precomputed maps.
        other: The same run for the other model and its label column; None if there is none.
        folder: Folder of the classifier's predictions, inside `out`.
        plans: {metric that needs partners: partner plan}; empty until all samples are predicted.
        retraining: Data that networks are retrained on.
        misfits: {explainer that does not fit the network: reason}. `explainers` does not contain these explainers.
    """

    spec: RunSpec
    out: Path
    explainers: list[Explainer]
    metrics: list[Metric]
    data: SplitTable
    question: RunQuestion
    classifier: Classifier
    columns: dict[str, str] = field(default_factory=dict)
    selection: Selection | None = None
    maps: dict[str, str | PythonObject] = field(default_factory=dict)
    other: "RunContext | None" = None
    folder: str = "predictions"
    plans: dict[Metric, PartnerPlan] = field(default_factory=dict)
    retraining: Retraining = field(default_factory=Retraining)
    misfits: dict[str, str] = field(default_factory=dict)

    @property
    def in_memory(self) -> list[PythonObject]:
        """Return the precomputed maps that are not in a file, each with the id of its explainer as digest."""
        objects = ((key, entry) for key, entry in self.maps.items() if isinstance(entry, PythonObject))
        return [entry.model_copy(update={"digest": key}) for key, entry in objects]

    @property
    def dataset(self) -> str:
        """Return the name of the dataset in results, which does not depend on where it was loaded from."""
        return self.data.source.name

    @property
    def model(self) -> str:
        """Return the name of the classifier in results, which does not depend on where it was loaded from."""
        return public_name(self.classifier.id, self.classifier.repo is None)

    @cached_property
    def recorded(self) -> dict[str, str]:
        """Return the names of dataset, split and model that records contain."""
        return {
            "dataset": recorded_name(self.dataset, self.identity.fingerprint),
            "split": self.spec.split,
            "model": recorded_name(self.model, self.identity.classifier),
        }

    @property
    def class_names(self) -> list[str] | None:
        """Return the network's class names, or the dataset's if the network has none and uses the dataset's order."""
        names = self.question.names
        if self.question.by_position and names is not None and len(names) == self.question.classes:
            return names
        return self.classifier.labels

    @property
    def loaded_dataset(self) -> Loaded:
        """Return the name or path that the dataset was loaded from."""
        return Loaded(id=self.data.source.name, repo=self.data.source.repo, revision=self.data.source.revision)

    @property
    def loaded_model(self) -> Loaded:
        """Return the name or path that the classifier was loaded from."""
        return Loaded(id=self.model, repo=self.classifier.repo, revision=self.classifier.revision)

    @property
    def rows(self) -> datasets.Dataset:
        """Return all samples of the split, in the run's order."""
        return self.data.samples.rows

    @property
    def of_both(self) -> "list[RunContext]":
        """Return this run and, if there is another model, the run of that model."""
        return [self] if self.other is None else [self, self.other]

    def of_other(self, read: ReadBatch) -> ReadBatch:
        """Return a batch with the labels of the other model."""
        assert self.other is not None
        column = self.other.spec.label_column
        if column == self.spec.label_column:
            return read
        return relabelled(read, OWN_LABEL if column == "label" else column, self.other.question.names or [])

    @cached_property
    def batches(self) -> list[range]:
        """Return the positions of each batch. The last batch is always complete, even if the limit cuts it."""
        size = self.spec.batch_size
        return [range(start, min(start + size, len(self.rows))) for start in range(0, self.data.count, size)]

    @property
    def end(self) -> int:
        """Return the position after the last batch."""
        return self.batches[-1].stop

    @cached_property
    def hashes(self) -> tuple[str, dict[str, str]]:
        """Return the digest of the classifier, and the hashes of its parts."""
        return self.classifier.hashes()

    @cached_property
    def identity(self) -> Identity:
        """Return the settings that all cells share."""
        entries = {
            "fingerprint": self.data.fingerprint,
            "label_column": self.spec.label_column,
            "split": self.spec.split,
            "classifier": self.hashes[0],
            "geometry": self.classifier.geometry.as_dict(),
            "layer": self.classifier.layer,
            "target": self.question.rule.identity,
            "labels": self.question.members or [],
            "activation": self.classifier.activation,
            "precision": self.classifier.arithmetic,
            "seed": self.spec.seed,
            "groups": None if self.question.groups is None else self.question.groups.identity,
            "mask_values": spelled(" ".join(self.spec.mask_values or ())),
        }
        return Identity.model_validate_json(json.dumps(entries))  # tuples become lists, as in a file

    @cached_property
    def target_range(self) -> TargetRange:
        """Return the range of the target's value; for a file of targets, the widest range."""
        if (known := self.identity.target_range) is not None:
            return known
        terms = (self.question.rule.by_id or {}).values()
        plus, minus = (max((len(set(getattr(term, side))) for term in terms), default=0) for side in ("plus", "minus"))
        return TargetRange.of_classes(plus, minus, self.classifier.activation)

    @property
    def schema(self) -> pa.Schema:
        """Return the columns of predictions."""
        return self.data.schema

    @property
    def prediction_parts(self) -> PartFolder:
        """Return the folder of the part files of predictions."""
        return self.store.predictions(self.folder, self.schema)

    def predictions(self, *, check: bool = False) -> StoredPredictions:
        """Return the predictions in the part files.

        Args:
            check: Whether to delete damaged files and, if the run is strict, files with a sample without a prediction.
                Only the main process may do so, while it holds the lock.
        """

        def redo(entry: PartNote) -> bool:
            return self.spec.strict and bool(entry.about["unreadable"])

        folder = self.prediction_parts
        return StoredPredictions(folder.check(redo) if check else folder.parts(), self.end)

    def with_plans(self) -> "RunContext":
        """Return the run with the partner plans of its metrics, computed from its predictions.

        Raises:
            UserError: Some predictions were lost.
        """
        planning = [metric for metric in self.metrics if metric.declaration.plan is not None]
        if not planning:
            return self
        predictions = self.predictions()
        if not predictions.is_stored.all():
            raise UserError(
                f"a part of the predictions in {self.out} was damaged or lost during the run; start the run again"
            )
        known = for_plans(predictions, self.data.count, self.classifier, self.question, self.spec.seed)
        return replace(self, plans={metric: plan_of(metric, known) for metric in planning})

    @cached_property
    def store(self) -> RunStore:
        """Return the part files of the run."""
        return RunStore(self.out, self.identity)

    @cached_property
    def cells(self) -> list[Cell]:
        """Return a cell for every pair of explainer and metric.

        Raises:
            UserError: A metric needs groups of classes, but no groups are known for this model.
        """
        for metric in self.metrics:
            if "groups" in metric.inputs and self.question.groups is None:
                raise UserError(
                    f"{metric.name} needs groups of classes, but no groups are known for this model; use --groups "
                    "FILE, JSON {group: [class, ...]} or CSV with class,group, or leave the metric out"
                )
        return [
            self._cell(explainer, metric)
            for explainer in self.explainers
            for metric in self.metrics
            if metric.declaration.keeps or explainer not in self.retraining.controls
        ]

    def _cell(self, explainer: Explainer, metric: Metric) -> Cell:
        columns, declared = self.columns, metric.declaration
        asked_for = {f"column {name}": columns[name] for name in declared.columns if name in columns}
        if "other" in metric.inputs and self.other is not None:
            asked_for["other model"] = hash_of(self.other.identity.model_dump(mode="json"), self.other.columns)
        asked_for |= {PARTNERS: self.plans[metric].identity} if metric in self.plans else {}
        asked_for |= {TRAINED_ON: self.retraining.trained_on} if declared.keeps else {}
        base = self.retraining.base if starts_from_base(metric) else None
        asked_for |= {INITIAL: base.digest} if base is not None else {}
        cell_id = self.identity.cell_id(explainer.identity, metric.identity, metric.inputs, asked_for)
        return Cell(cell_id, explainer, metric, self.target_range, asked_for)

    @cached_property
    def outputs(self) -> list[Output]:
        """Return the cells, and the maps that the run stores."""
        return [*self.cells, *(KeptMaps(explainer) for explainer in self.explainers if self.spec.keep_maps)]

    def seed_for(self, image_id: str, purpose: str) -> int:
        """Return a sample's seed for one purpose; it does not depend on the batch."""
        return seed_of(self.spec.seed, image_id, purpose)

    def read(self, positions: Sequence[int]) -> ReadBatch:
        """Read and prepare the samples at these positions.

        Raises:
            UserError: A sample cannot be read, and the run is strict.
        """
        return read_batch(self.data.samples, self.classifier, positions, self.spec.strict)

    def partners(self, positions: Sequence[int]) -> PartnerSamples:
        """Return the samples at these positions as partners of other samples."""
        positions = tuple(positions)
        if positions not in self._loaded:
            self._loaded.clear()  # several explainers in a row need the same partners
            read = read_batch(self.data.samples, self.classifier, positions, strict=False)
            for position, reason in read.faults.items():  # the sample could be read when it was predicted
                raise UserError(f"image {self.data.samples.ids[position]}: {reason}")
            assert read.samples is not None
            batch, right = read.samples.batch, [self.question.right(row) for row in read.rows]
            nothing = np.zeros(self.question.classes, dtype=bool)
            self._loaded[positions] = PartnerSamples(
                ids=batch.ids,
                images=batch.images,
                right=np.stack([nothing if classes is None else classes for classes in right]),
                seeds=[self.seed_for(image_id, "explain") for image_id in batch.ids],
            )
        return self._loaded[positions]

    @cached_property
    def _loaded(self) -> dict[tuple[int, ...], PartnerSamples]:
        """Return the cache of the partners that were read last, {positions: samples}; `partners` fills the cache."""
        return {}


def starts_from_base(metric: Metric) -> bool:
    """Return whether a metric's networks start from the weights from which the classifier was fine-tuned."""
    return bool(metric.declaration.keeps) and dict(metric.options).get("initial") == "base"
