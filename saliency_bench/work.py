"""What a run works on, and its cells: one explainer scored by one metric, each with an identity of its own."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import datasets
import torch

from saliency_bench import records
from saliency_bench.classifier import Classifier, load_classifier
from saliency_bench.data import class_names, fingerprint, load_dataset
from saliency_bench.errors import UserError
from saliency_bench.explainer import Explainer
from saliency_bench.labels import Members, match
from saliency_bench.metric import Metric
from saliency_bench.target_rules import TargetRule, load_rule
from saliency_bench.types import Batch

PRECISION = "fp32"


@dataclass(frozen=True)
class Cell:
    """One explainer scored by one metric: a number of the leaderboard."""

    id: str
    explainer: Explainer
    metric: Metric

    def as_dict(self) -> dict:
        return {
            "cell_id": self.id,
            "parts": records.identity(self.explainer.identity),
            "explainer": self.explainer.name,
            "explainer_options": dict(self.explainer.options),
            "explainer_text": str(self.explainer),
            "explainer_version": self.explainer.version,
            "metric": self.metric.name,
            "metric_options": dict(self.metric.options),
            "metric_text": str(self.metric),
            "metric_version": self.metric.version,
            "higher_is_better": self.metric.higher_is_better,
        }


@dataclass
class Work:
    """What a run works on, loaded once."""

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

    @cached_property
    def identity(self) -> dict:
        """Everything of a cell but its explainer and metric."""
        return {
            "fingerprint": fingerprint(self.rows),
            "split": self.split,
            "classifier": self.classifier.digest,
            "geometry": str(self.classifier.geometry),
            "target": self.rule.identity,
            "labels": self.members,
            "precision": PRECISION,
            "seed": self.seed,
        }

    def cell(self, explainer: Explainer, metric: Metric) -> Cell:
        return Cell(records.identity(self.identity, explainer.identity, metric.identity), explainer, metric)

    def chunk(self, number: int) -> Batch:
        start = number * self.batch_size
        undecoded = self.rows[start : start + self.batch_size]
        return self.classifier.prepare(
            {key: undecoded[key] for key in ("image", "mask", "label", "image_id") if key in undecoded}
        )


def load_work(dataset, model, split, target, label_map, batch_size, seed, device, out: Path) -> Work:
    """Load dataset and classifier and match their classes, before any file is written."""
    rows = load_dataset(dataset, split=split)
    if len(rows) == 0:
        raise UserError(f"the split {split} of {dataset} is empty")
    names = class_names(rows)
    classifier = load_classifier(model, device=device)
    undecoded = rows.cast_column("image", datasets.Image(decode=False))
    if "mask" in rows.column_names:
        undecoded = undecoded.cast_column("mask", datasets.Image(decode=False))
    probe = classifier.prepare([undecoded[0]]).images
    with torch.no_grad():
        classes = classifier.eval()(probe).shape[1]
    members = match(names, classifier.labels, classes, label_map)
    rule = load_rule(target, classifier.labels, classes)
    return Work(classifier, undecoded, dataset, split, names, members, rule, seed, batch_size, out)
