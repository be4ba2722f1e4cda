"""What a run works on, and its cells: one explainer scored by one metric, each with an identity of its own."""

import json
from collections import Counter
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import datasets
import torch
from pydantic import ValidationError

from saliency_bench import options
from saliency_bench.classifiers.classifier import Classifier
from saliency_bench.classifiers.loading import load_classifier
from saliency_bench.data.loading import class_names, fingerprint, load_dataset, origin
from saliency_bench.engine.reading import read_chunk
from saliency_bench.errors import UserError
from saliency_bench.explainer import Explainer
from saliency_bench.metric import Metric
from saliency_bench.results.cell import CellKey, field_line
from saliency_bench.targets.class_groups import ClassGroups, load_groups
from saliency_bench.targets.label_maps import Members, match
from saliency_bench.targets.rules import TargetRule, check_ids, load_rule
from saliency_bench.types import Chunk
from saliency_bench.utils.hashing import identity


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
            explainer_id=identity(self.explainer.identity),
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


@dataclass
class RunContext:
    """What a run works on, loaded once. `dataset` is its own name (`data.origin`), wherever it was loaded from."""

    classifier: Classifier
    rows: datasets.Dataset
    dataset: str
    split: str
    names: list[str]
    members: Members
    rule: TargetRule
    seed: int
    batch_size: int
    out: Path
    strict: bool = False
    groups: ClassGroups | None = None

    @cached_property
    def identity(self) -> dict:
        """Everything of a cell but its explainer and metric."""
        return {
            "fingerprint": fingerprint(self.rows),
            "split": self.split,
            "classifier": self.classifier.digest,
            "geometry": self.classifier.geometry.as_dict(),
            "layer": self.classifier.layer,
            "target": self.rule.identity,
            "labels": self.members,
            "precision": self.classifier.precision + (", channels last" if self.classifier.channels_last else ""),
            "seed": self.seed,
        }

    def cell(self, explainer: Explainer, metric: Metric) -> Cell:
        """Raises: UserError for a metric that needs groups of classes where none are known."""
        parts: list[object] = [self.identity, explainer.identity, metric.identity]
        if "groups" in metric.needs:
            if self.groups is None:
                raise UserError(
                    f"{metric.name} needs groups of classes, and none are known for these; "
                    "give --groups FILE, JSON {group: [class, ...]} or CSV with class,group, or leave the metric out"
                )
            parts.append(self.groups.identity)
        return Cell(identity(*parts), explainer, metric)

    def chunk(self, number: int) -> Chunk:
        """The samples of one chunk. Raises: UserError for one that cannot be read, if the run is strict."""
        start = number * self.batch_size
        return read_chunk(self.rows, self.classifier, start, start + self.batch_size, self.strict)


def load_context(
    dataset, model, split, target, label_map, batch_size, seed, device, out: Path, *, strict=False, precision=None,
    channels_last=None, groups=None,
) -> RunContext:  # fmt: skip
    """Load dataset and classifier and match their classes, before any file is written."""
    dataset = str(dataset)
    rows, (called, _) = load_dataset(dataset, split=split), origin(dataset)
    if len(rows) == 0:
        raise UserError(f"the split {split} of {dataset} is empty")
    names = class_names(rows)
    classifier = load_classifier(model, device=device, precision=precision, channels_last=channels_last)
    undecoded = rows.cast_column("image", datasets.Image(decode=False))
    if "mask" in rows.column_names:
        undecoded = undecoded.cast_column("mask", datasets.Image(decode=False))
    context = RunContext(
        classifier, undecoded, called, split, names, [], TargetRule("label", "label"), seed, batch_size, out, strict
    )
    classes = _classes(context)
    context.members = match(names, classifier.labels, classes, label_map)
    context.groups = load_groups(groups, classifier.labels, classes, names, context.members)
    context.rule = load_rule(target, classifier.labels, classes, context.groups)
    check_ids(context.rule, _ids(rows))
    return context


def check_counts(batch_size: int, limit: int | None) -> None:
    """Raises: UserError for a chunk or a run of no samples."""
    if batch_size < 1 or (limit is not None and limit < 1):
        raise UserError("--batch-size and --limit must be at least 1")


def _ids(rows: datasets.Dataset) -> list[str]:
    """Raises: UserError for an image id that comes twice: records, draws and pictures go by it."""
    if "image_id" not in rows.column_names:
        return [str(position) for position in range(len(rows))]
    ids = [str(image_id) for image_id in rows["image_id"]]
    if len(set(ids)) < len(ids):
        twice, times = Counter(ids).most_common(1)[0]
        raise UserError(f"the image id {twice} comes {times} times; every sample needs an id of its own")
    return ids


def _classes(context: RunContext) -> int:
    """The number of logits, from the first sample that can be read."""
    one_by_one = replace(context, batch_size=1)
    for number in range(len(context.rows)):
        if (batch := one_by_one.chunk(number).batch) is not None:
            with torch.no_grad():
                return context.classifier.eval()(batch.images).shape[1]
    raise UserError(f"no image of the split {context.split} of {context.dataset} can be read")
