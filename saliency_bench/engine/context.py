"""What a run works on, loaded from its spec, and its cells: one explainer scored by one metric."""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import datasets
import torch
from torch import nn

from saliency_bench import options
from saliency_bench.classifiers.classifier import Classifier, SampleError
from saliency_bench.classifiers.loading import load_classifier
from saliency_bench.data.loading import class_names, fingerprint, load_dataset, origin
from saliency_bench.engine.precomputed import PrecomputedMaps
from saliency_bench.errors import UserError
from saliency_bench.explainer import Explainer, as_explainer
from saliency_bench.metric import Metric, load_metric
from saliency_bench.results.identity import Identity
from saliency_bench.spec import PythonObject, RunSpec, check_names
from saliency_bench.targets.class_groups import ClassGroups, load_groups
from saliency_bench.targets.label_maps import Members, match
from saliency_bench.targets.rules import TargetRule, check_ids, load_rule
from saliency_bench.types import Chunk
from saliency_bench.utils.hashing import identity as hash_of

Objects = Mapping[PythonObject, object]  # what a spec says of each Python object, and the object


@dataclass(frozen=True)
class Cell:
    """One explainer scored by one metric: a number of the leaderboard."""

    id: str
    explainer: Explainer
    metric: Metric

    def as_dict(self) -> dict:
        return {
            "cell_id": self.id,
            "parts": hash_of(self.explainer.identity),
            "explainer": self.explainer.name,
            "explainer_options": json.loads(options.text(self.explainer.options)),
            "explainer_text": str(self.explainer),
            "explainer_version": self.explainer.version,
            "baseline": self.explainer.baseline,
            "metric": self.metric.name,
            "metric_options": json.loads(options.text(self.metric.options)),
            "metric_text": str(self.metric),
            "metric_version": self.metric.version,
            "higher_is_better": self.metric.higher_is_better,
        }


@dataclass(frozen=True)
class RunContext:
    """What a run works on, loaded once.

    dataset   its own name (`data.origin`), wherever it was loaded from
    rows      its samples, pictures not yet decoded; names: of its classes
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
        columns = self.rows[start : start + self.spec.batch_size]
        wanted = [key for key in ("image", "mask", "label", "image_id") if key in columns]
        rows = [{key: columns[key][position] for key in wanted} for position in range(len(columns["image"]))]
        for position, row in enumerate(rows):
            row["image_id"] = str(row.get("image_id", start + position))
            if row["label"] is None or row["label"] < 0:
                raise UserError(f"image {row['image_id']} has no label; leave it out of the dataset")
        entries = [(row["image_id"], row["label"]) for row in rows]
        try:
            return Chunk(entries, self.classifier.prepare(rows), {})
        except SampleError:
            if self.spec.strict:
                raise
        faults = self._faults(rows)
        good = [row for position, row in enumerate(rows) if position not in faults]
        return Chunk(entries, self.classifier.prepare(good) if good else None, faults)

    def _faults(self, rows: list[dict]) -> dict[int, str]:
        """{position: why this sample cannot be prepared}, one by one."""
        faults = {}
        for position, row in enumerate(rows):
            try:
                self.classifier.prepare([row])
            except SampleError as error:
                faults[position] = error.reason
        return faults


def describe(settings: Mapping[str, object]) -> tuple[RunSpec, dict[PythonObject, object]]:
    """(the spec of the settings of a run, the Python objects among them).

    Explainers, metrics, model, label map and groups may be Python objects. Of explainers and metrics nothing but their
    names and options is loaded. Raises: UserError for a setting, name or option that is not allowed.
    """
    check_names(settings)
    objects: dict[PythonObject, object] = {}
    plain = dict(settings)
    for name, resolve in (("explainers", as_explainer), ("metrics", as_metric)):
        if name in plain:
            plain[name] = _names(name, plain[name], resolve, objects)
    for name in ("label_map", "groups"):
        if name in plain:
            plain[name] = _table(name, plain[name], objects)
    if isinstance(device := plain.get("device"), torch.device):
        plain["device"] = str(device)
    if isinstance(model := plain.get("model"), nn.Module):
        plain["model"] = _module(model, objects)
    return RunSpec.read(plain), objects


def as_metric(given: str | Metric) -> Metric:
    if isinstance(given, str | Metric):
        return given if isinstance(given, Metric) else load_metric(given)
    raise UserError(f"a metric is a name or what load_metric gives; got {given!r}")


def _names(setting: str, given: Any, resolve: Callable[[Any], Explainer | Metric], objects: dict) -> object:
    """Explainers or metrics as a spec holds them: by name where a name gives the same, else as a Python object."""
    listed = [given] if isinstance(given, str) or callable(given) else given
    if not isinstance(listed, Iterable):
        return given  # for the spec to refuse
    pairs = [(item, resolve(item)) for item in listed]
    if len({resolved.identity for _, resolved in pairs}) < len({resolved for _, resolved in pairs}):
        raise UserError(f"two {setting} have the same name, options and code; give one of them another name")
    return [item if isinstance(item, str) else _name(resolved, resolve, objects) for item, resolved in pairs]


def _name(item: Explainer | Metric, resolve: Callable[[Any], Explainer | Metric], objects: dict) -> str | PythonObject:
    with suppress(UserError):  # no such name, or no such option of it
        if resolve(str(item)) == item:
            return str(item)
    kind = "metric" if isinstance(item, Metric) else "explainer" if isinstance(item.version, int) else "function"
    kind = "maps" if isinstance(item.function, PrecomputedMaps) else kind
    written = PythonObject(kind=kind, name=str(item), digest=hash_of(item.identity))
    objects[written] = item
    return written


def _table(name: str, given: object, objects: dict[PythonObject, object]) -> object:
    if isinstance(given, ClassGroups):
        written = PythonObject(kind="groups", name=given.name, digest=given.identity)
    elif isinstance(given, Mapping):
        content = {str(key): value for key, value in given.items()}
        written = PythonObject(kind="dict", name=name, digest=hash_of(content))
    else:
        return given
    objects[written] = given
    return written


def _module(model: nn.Module, objects: dict[PythonObject, object]) -> PythonObject:
    kind = "classifier" if isinstance(model, Classifier) else "module"
    # Where it is now: a run moves it to its own device later.
    device = next((p.device for p in model.parameters() if p.device.type == "cuda"), "cpu")
    classifier = load_classifier(model, device=device)
    written = PythonObject(kind=kind, name=classifier.id, digest=classifier.digest)
    objects[written] = classifier
    return written


def load(spec: RunSpec, objects: Objects, device: torch.device | str | None = None) -> RunContext:
    """Load what a spec names and match the classes of dataset and model; nothing is written.

    objects: the Python objects that the spec mentions. device: to compute on, here; default: the spec's.
    Names and options of explainers and metrics are checked before dataset and model are loaded.
    Raises: UserError for anything that cannot be loaded or does not fit together.
    """
    explainers = [as_explainer(_given(entry, objects)) for entry in spec.explainers]
    metrics = [as_metric(_given(entry, objects)) for entry in spec.metrics]
    rows, (called, _) = load_dataset(spec.dataset, split=spec.split), origin(spec.dataset)
    if len(rows) == 0:
        raise UserError(f"the split {spec.split} of {spec.dataset} is empty")
    names = class_names(rows)
    classifier = load_classifier(
        _given(spec.model, objects),
        device=spec.device if device is None else device,
        precision=spec.precision,
        channels_last=spec.channels_last,
    )
    undecoded = _undecoded(rows)
    classes = _classes(classifier, undecoded, f"{spec.split} of {called}")
    members = match(names, classifier.labels, classes, _given(spec.label_map, objects))
    groups = load_groups(_given(spec.groups, objects), classifier.labels, classes, names, members)
    rule = load_rule(spec.target, classifier.labels, classes, groups)
    check_ids(rule, _ids(rows))
    return RunContext(
        spec=spec,
        explainers=list(dict.fromkeys(explainers)),
        metrics=list(dict.fromkeys(metrics)),
        dataset=called,
        rows=undecoded,
        names=names,
        classifier=classifier,
        members=members,
        groups=groups,
        rule=rule,
    )


def _given(entry: str | PythonObject | None, objects: Objects) -> Any:
    """The object that a spec mentions, or the name it holds. Raises: UserError for an object that is not there."""
    if not isinstance(entry, PythonObject):
        return entry
    if entry not in objects:
        raise UserError(f"{entry} was a Python object, which no file holds; give it to saliency_bench.run again")
    return objects[entry]


def _undecoded(rows: datasets.Dataset) -> datasets.Dataset:
    for column in {"image", "mask"} & set(rows.column_names):
        rows = rows.cast_column(column, datasets.Image(decode=False))
    return rows


def _classes(classifier: Classifier, rows: datasets.Dataset, called: str) -> int:
    """The number of logits, from the first sample that can be read."""
    columns = [name for name in ("image", "mask", "image_id") if name in rows.column_names]
    for row in rows.select_columns(columns):
        with suppress(SampleError), torch.no_grad():
            return classifier.eval()(classifier.prepare([row]).images).shape[1]
    raise UserError(f"no image of the split {called} can be read")


def _ids(rows: datasets.Dataset) -> list[str]:
    """Raises: UserError for an image id that comes twice: records, draws and pictures go by it."""
    if "image_id" not in rows.column_names:
        return [str(position) for position in range(len(rows))]
    ids = [str(image_id) for image_id in rows["image_id"]]
    if len(set(ids)) < len(ids):
        twice, times = Counter(ids).most_common(1)[0]
        raise UserError(f"the image id {twice} comes {times} times; every sample needs an id of its own")
    return ids
