"""What a run works on, loaded from its spec, and its cells: one explainer scored by one metric."""

import json
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import datasets
import torch
from pydantic import ValidationError

from saliency_bench import options
from saliency_bench.classifiers.classifier import Classifier
from saliency_bench.classifiers.loading import load_classifier
from saliency_bench.data.loading import class_names, fingerprint, load_dataset, origin
from saliency_bench.engine.python_objects import Objects, object_of
from saliency_bench.engine.reading import read_chunk, readable
from saliency_bench.errors import UserError
from saliency_bench.explainer import Explainer, as_explainer
from saliency_bench.metric import Metric, as_metric
from saliency_bench.results.cell import CellKey, field_line
from saliency_bench.results.identity import Identity
from saliency_bench.spec import RunSpec
from saliency_bench.targets.class_groups import ClassGroups, load_groups
from saliency_bench.targets.label_maps import Members, match
from saliency_bench.targets.rules import TargetRule, check_ids, load_rule
from saliency_bench.types import Chunk
from saliency_bench.utils.hashing import hash_of


@dataclass(frozen=True)
class Cell:
    """One explainer scored by one metric: a number of the leaderboard."""

    id: str
    explainer: Explainer
    metric: Metric

    @cached_property
    def key(self) -> CellKey:
        """Raises: UserError for a name that no file of results can hold, such as one with a line break."""
        try:
            return self._key()
        except ValidationError as error:
            raise UserError(f"{self.explainer} by {self.metric}: {field_line(error)}") from error

    def _key(self) -> CellKey:
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
        )


@dataclass(frozen=True)
class RunContext:
    """What a run works on, loaded once.

    dataset   its own name (`data.origin`), wherever it was loaded from
    rows      its samples (`reading.readable`)
    names     of its classes
    members   for each class of the dataset, the classes of the model that stand for it
    groups    groups of the model's classes; None where none are known
    """

    spec: RunSpec
    explainers: list[Explainer]
    metrics: list[Metric]
    dataset: str
    rows: datasets.Dataset
    names: list[str]
    classifier: Classifier
    members: Members
    groups: ClassGroups | None
    rule: TargetRule

    @property
    def out(self) -> Path:
        return Path(self.spec.out)

    @property
    def samples(self) -> int:
        """How many samples the run is about."""
        return min(self.spec.limit or len(self.rows), len(self.rows))

    @property
    def chunks(self) -> range:
        return range(-(-self.samples // self.spec.batch_size))

    @cached_property
    def identity(self) -> Identity:
        """What all cells have in common."""
        entries = {
            "fingerprint": fingerprint(self.rows),
            "split": self.spec.split,
            "classifier": self.classifier.digest,
            "geometry": self.classifier.geometry.as_dict(),
            "layer": self.classifier.layer,
            "target": self.rule.identity,
            "labels": self.members,
            "precision": self.classifier.precision + (", channels last" if self.classifier.channels_last else ""),
            "seed": self.spec.seed,
            "groups": None if self.groups is None else self.groups.identity,
        }
        return Identity.model_validate_json(json.dumps(entries))  # tuples become lists, as in a file

    @cached_property
    def cells(self) -> list[Cell]:
        """Every explainer by every metric. Raises: UserError for a metric whose groups of classes are not known."""
        for metric in self.metrics:
            if "groups" in metric.needs and self.groups is None:
                raise UserError(
                    f"{metric.name} needs groups of classes, and none are known for these; "
                    "give --groups FILE, JSON {group: [class, ...]} or CSV with class,group, or leave the metric out"
                )
        return [
            Cell(self.identity.cell_id(explainer.identity, metric.identity, metric.needs), explainer, metric)
            for explainer in self.explainers
            for metric in self.metrics
        ]

    def chunk(self, number: int) -> Chunk:
        """The samples of one chunk. Raises: UserError for one that cannot be read, if the run is strict."""
        start = number * self.spec.batch_size
        return read_chunk(self.rows, self.classifier, start, start + self.spec.batch_size, self.spec.strict)


def load(spec: RunSpec, objects: Objects, device: torch.device | str | None = None) -> RunContext:
    """Load what a spec names and match the classes of dataset and model; nothing is written.

    objects: the Python objects that the spec mentions. device: to compute on, here; default: the spec's.
    Names and options of explainers and metrics are checked before dataset and model are loaded.
    Raises: UserError for anything that cannot be loaded or does not fit together.
    """
    explainers = [as_explainer(object_of(entry, objects)) for entry in spec.explainers]
    metrics = [as_metric(object_of(entry, objects)) for entry in spec.metrics]
    rows, (called, _) = load_dataset(spec.dataset, split=spec.split), origin(spec.dataset)
    if len(rows) == 0:
        raise UserError(f"the split {spec.split} of {spec.dataset} is empty")
    names = class_names(rows)
    classifier = load_classifier(
        object_of(spec.model, objects),
        device=spec.device if device is None else device,
        precision=spec.precision,
        channels_last=spec.channels_last,
    )
    rows = readable(rows)
    classes = _classes(spec, classifier, rows)
    members = match(names, classifier.labels, classes, object_of(spec.label_map, objects))
    groups = load_groups(object_of(spec.groups, objects), classifier.labels, classes, names, members)
    rule = load_rule(spec.target, classifier.labels, classes, groups)
    check_ids(rule, _ids(rows))
    return RunContext(
        spec=spec,
        explainers=list(dict.fromkeys(explainers)),
        metrics=list(dict.fromkeys(metrics)),
        dataset=called,
        rows=rows,
        names=names,
        classifier=classifier,
        members=members,
        groups=groups,
        rule=rule,
    )


def _classes(spec: RunSpec, classifier: Classifier, rows: datasets.Dataset) -> int:
    """The number of logits, from the first sample that can be read."""
    for number in range(len(rows)):
        if (batch := read_chunk(rows, classifier, number, number + 1, spec.strict).batch) is not None:
            with torch.no_grad():
                return classifier.eval()(batch.images).shape[1]
    raise UserError(f"no image of the split {spec.split} of {spec.dataset} can be read")


def _ids(rows: datasets.Dataset) -> list[str]:
    """Raises: UserError for an image id that comes twice: records, draws and pictures go by it."""
    if "image_id" not in rows.column_names:
        return [str(position) for position in range(len(rows))]
    ids = [str(image_id) for image_id in rows["image_id"]]
    if len(set(ids)) < len(ids):
        twice, times = Counter(ids).most_common(1)[0]
        raise UserError(f"the image id {twice} comes {times} times; every sample needs its own id")
    return ids
