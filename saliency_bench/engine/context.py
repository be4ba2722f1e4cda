"""What a run works on, loaded from its spec, and its cells: one explainer scored by one metric."""

import json
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import torch
from pydantic import ValidationError

from saliency_bench import options
from saliency_bench.classifiers.classifier import Classifier, RefusedImagesError
from saliency_bench.classifiers.loading import load_classifier
from saliency_bench.data.fingerprints import column_of, content_of
from saliency_bench.data.loading import Found, find, with_pictures
from saliency_bench.data.untrusted import check_samples
from saliency_bench.engine.checkpoint_writing import base_of
from saliency_bench.engine.ordering import order_of
from saliency_bench.engine.precomputed import explainer_of, quoted_id
from saliency_bench.engine.python_objects import Objects, object_of
from saliency_bench.engine.reading import (
    OWN_LABEL,
    Samples,
    Selection,
    TrainingRows,
    check_further,
    group_names,
    label_names,
    labelled,
    read_chunk,
    readable,
    relabelled,
    sample_ids,
    selection_of,
    training_splits,
)
from saliency_bench.errors import UserError
from saliency_bench.explainer import Explainer, as_explainer
from saliency_bench.explaining.composing import blurred
from saliency_bench.explaining.map_provider import reason_of
from saliency_bench.metric import Metric, as_metric, check_without_people
from saliency_bench.results.cell import CellKey, bounds, field_line
from saliency_bench.results.identity import PARTNERS, Identity
from saliency_bench.results.manifest import Loaded
from saliency_bench.results.parts import run_id
from saliency_bench.results.public_names import public_name, recorded_name
from saliency_bench.scoring.partners import PartnerPlan, PartnerSamples
from saliency_bench.spec import PythonObject, RunSpec
from saliency_bench.target import TargetRange
from saliency_bench.targets import known_maps
from saliency_bench.targets.class_groups import ClassGroups, load_groups
from saliency_bench.targets.label_maps import Members, match
from saliency_bench.targets.rules import NO_CLASS, TargetRule, check_ids, check_known, load_rule
from saliency_bench.types import Chunk
from saliency_bench.utils.hashing import hash_of
from saliency_bench.utils.messages import complain
from saliency_bench.utils.seeds import seed_of

SAME = 1e-3  # of the largest logit; a GPU may change last bits
TRAINED_ON, INITIAL = "set of training images", "initial weights"  # in the ids of cells
UNSTEADY = (
    "returns different logits when it is called twice on the same image, as if forward drew at random or counted its "
    "calls; its scores cannot be reproduced"
)


@dataclass(frozen=True)
class Cell:
    """One explainer scored by one metric: a number of the leaderboard."""

    id: str
    explainer: Explainer
    metric: Metric
    target: TargetRange
    asked_for: dict[str, str]

    @property
    def is_planned(self) -> bool:
        """Whether its id is known: the partners of samples are, if its metric asks for them."""
        return self.metric.plan is None or PARTNERS in self.asked_for

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
            range=bounds(self.metric.limits(self.target)),
            explainer_about=self.explainer.about,
            metric_about=self.metric.about,
            aggregate=self.metric.aggregate is not None,
            note=self.metric.note,
            asked_for=self.asked_for,
        )


@dataclass(frozen=True)
class KeptMaps:
    """The maps of an explainer, of a run that keeps them: planned and resumed like a cell."""

    explainer: Explainer

    @cached_property
    def id(self) -> str:
        return hash_of("maps", self.explainer.identity)


@dataclass(frozen=True)
class RunContext:
    """What a run works on, loaded once.

    out       the run's folder, absolute: an explainer may change the working directory
    found     the dataset: its name, and the repository and commit it was loaded from
    data      its samples, in the run's order (`ordering`)
    fingerprint  of the dataset's split, in its own order
    columns   {column that metrics ask for: a hash of what it holds}
    samples   how many of them the run is about: the first, whole groups
    names     of its classes; None of a dataset without labels
    members   for each class of the dataset, the classes of the model that stand for it; None where none do
    unlabelled  why `members` is None, in a few words
    groups    groups of the model's classes; None where none are known
    selection  the samples that are explained; None: all
    maps      {explainer id: its entry in `spec.maps`} of precomputed maps
    other     the same run of the other model, whose label is another column; None where there is none
    folder    in `out`, of what the classifier says
    plans     of the metrics that ask for partners; none before all samples are predicted
    training  {split: rows} that networks are retrained on; {} where no metric asks for that
    base      what the training of the classifier started from; None where no metric asks for that
    controls  explainers that retraining metrics are compared with, which no other metric scores
    retrained  {cell id of a retraining metric: (N, P), the classes that its networks give the samples}; filled by
               `retraining.stage` before chunks are computed
    """

    spec: RunSpec
    out: Path
    explainers: list[Explainer]
    metrics: list[Metric]
    found: Found
    data: Samples
    fingerprint: str
    columns: dict[str, str]
    samples: int
    names: list[str] | None
    classifier: Classifier
    classes: int
    members: Members | None
    unlabelled: str
    groups: ClassGroups | None
    rule: TargetRule
    selection: Selection | None = None
    maps: dict[str, str | PythonObject] = field(default_factory=dict)
    other: "RunContext | None" = None
    folder: str = "predictions"
    plans: dict[Metric, PartnerPlan] = field(default_factory=dict)
    training: dict[str, TrainingRows] = field(default_factory=dict)
    base: Classifier | None = None
    controls: frozenset[Explainer] = frozenset()
    retrained: dict[str, np.ndarray] = field(default_factory=dict)

    @property
    def in_memory(self) -> list[PythonObject]:
        """Precomputed maps that no file holds, each with the id of its explainer as digest."""
        objects = ((key, one) for key, one in self.maps.items() if isinstance(one, PythonObject))
        return [one.model_copy(update={"digest": key}) for key, one in objects]

    @property
    def dataset(self) -> str:
        """What it is called in results, wherever it was loaded from."""
        return self.found.name

    @property
    def model(self) -> str:
        """What the classifier is called in results, wherever it was loaded from."""
        return public_name(self.classifier.id, self.classifier.repo is None)

    @cached_property
    def recorded(self) -> dict[str, str]:
        """Dataset, split and model as every record names them."""
        return {
            "dataset": recorded_name(self.dataset, self.identity.fingerprint),
            "split": self.spec.split,
            "model": recorded_name(self.model, self.identity.classifier),
        }

    @property
    def loaded_dataset(self) -> Loaded:
        return Loaded(id=self.found.name, repo=self.found.repo, revision=self.found.revision)

    @property
    def loaded_model(self) -> Loaded:
        return Loaded(id=self.model, repo=self.classifier.repo, revision=self.classifier.revision)

    @property
    def rows(self) -> datasets.Dataset:
        """All samples of the split, in the run's order."""
        return self.data.rows

    @property
    def of_both(self) -> "list[RunContext]":
        """This run, and the same of the other model where there is one."""
        return [self] if self.other is None else [self, self.other]

    def of_other(self, chunk: Chunk) -> Chunk:
        """A chunk with the labels of the other model."""
        assert self.other is not None
        column = self.other.spec.label_column
        if column == self.spec.label_column:
            return chunk
        return relabelled(chunk, OWN_LABEL if column == "label" else column, self.other.names or [])

    @property
    def chunks(self) -> range:
        return range(-(-self.samples // self.spec.batch_size))

    @cached_property
    def identity(self) -> Identity:
        """What all cells have in common."""
        entries = {
            "fingerprint": self.fingerprint,
            "label_column": self.spec.label_column,
            "split": self.spec.split,
            "classifier": self.classifier.digest,
            "geometry": self.classifier.geometry.as_dict(),
            "layer": self.classifier.layer,
            "target": self.rule.identity,
            "labels": self.members or [],
            "activation": self.classifier.activation,
            "precision": self.classifier.arithmetic,
            "seed": self.spec.seed,
            "groups": None if self.groups is None else self.groups.identity,
        }
        return Identity.model_validate_json(json.dumps(entries))  # tuples become lists, as in a file

    @cached_property
    def trained_on(self) -> str:
        """A hash of the images that networks are retrained on."""
        return hash_of([split.content for split in self.training.values()])

    @cached_property
    def target_range(self) -> TargetRange:
        if (known := self.identity.target_range) is not None:
            return known
        terms = (self.rule.by_id or {}).values()
        plus, minus = (max((len(set(getattr(term, side))) for term in terms), default=0) for side in ("plus", "minus"))
        return TargetRange.of_classes(plus, minus, self.classifier.activation)

    @cached_property
    def run_id(self) -> str:
        return run_id(self.identity, self.spec.batch_size)

    def right(self, row: Mapping) -> np.ndarray | None:
        """Bool (K,): the classes that are right for a sample, none of one without label; None where no label is known.

        The label's; of an image with several, all of them for a softmax, which can name only one.
        """
        if self.members is None:
            return None
        label, several = row["label"], row["labels"]
        alone = label is not None and (self.classifier.activation == "sigmoid" or several is None)
        right = np.zeros(self.classes, dtype=bool)
        right[[member for one in ([label] if alone else several or []) for member in self.members[one]]] = True
        return right

    def label_of(self, row: Mapping) -> str | None:
        """The name of a sample's label."""
        return None if self.names is None or row["label"] is None else self.names[row["label"]]

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
            self._cell(explainer, metric)
            for explainer in self.explainers
            for metric in self.metrics
            if metric.keeps or explainer not in self.controls
        ]

    def _cell(self, explainer: Explainer, metric: Metric) -> Cell:
        asked_for = {f"column {name}": self.columns[name] for name in metric.columns if name in self.columns}
        if "other" in metric.needs and self.other is not None:
            asked_for["other model"] = hash_of(self.other.identity.model_dump(mode="json"), self.other.columns)
        asked_for |= {PARTNERS: self.plans[metric].identity} if metric in self.plans else {}
        asked_for |= {TRAINED_ON: self.trained_on} if metric.keeps else {}
        asked_for |= {INITIAL: self.base.digest} if self.base is not None and starts_from_base(metric) else {}
        cell_id = self.identity.cell_id(explainer.identity, metric.identity, metric.needs, asked_for)
        return Cell(cell_id, explainer, metric, self.target_range, asked_for)

    @cached_property
    def outputs(self) -> list[Cell | KeptMaps]:
        """The cells, and the maps that the run keeps."""
        return [*self.cells, *(KeptMaps(explainer) for explainer in self.explainers if self.spec.keep_maps)]

    def chunk(self, number: int) -> Chunk:
        """The samples of one chunk. Raises: UserError for one that cannot be read, if the run is strict."""
        start = number * self.spec.batch_size
        stop = min(start + self.spec.batch_size, len(self.rows))
        return read_chunk(self.data, self.classifier, range(start, stop), self.spec.strict)

    def partners(self, positions: Sequence[int]) -> PartnerSamples:
        """The samples at these positions, to go with others."""
        positions = tuple(positions)
        if positions not in self._loaded:
            self._loaded.clear()  # explainers follow each other on the same chunk
            chunk = read_chunk(self.data, self.classifier, positions, strict=False)
            for place, reason in chunk.faults.items():  # it could be read when it was predicted
                raise UserError(f"image {chunk.rows[place]['image_id']}: {reason}")
            assert chunk.batch is not None
            right = [self.right(row) for row in chunk.rows]
            nothing = np.zeros(self.classes, dtype=bool)
            self._loaded[positions] = PartnerSamples(
                ids=chunk.batch.ids,
                images=chunk.batch.images,
                right=np.stack([nothing if own is None else own for own in right]),
                seeds=[seed_of(self.spec.seed, image_id, "explain") for image_id in chunk.batch.ids],
            )
        return self._loaded[positions]

    @cached_property
    def _loaded(self) -> dict[tuple[int, ...], PartnerSamples]:
        return {}


def load(spec: RunSpec, objects: Objects, device: torch.device | str | None = None) -> RunContext:
    """Load what a spec names and match the classes of dataset and model; nothing is written.

    objects: the Python objects that the spec mentions. device: to compute on, here; default: the spec's.
    Names and options of explainers and metrics are checked before dataset and model are loaded.
    Raises: UserError for anything that cannot be loaded or does not fit together.
    """
    out = Path(spec.out).absolute()
    explainers = [as_explainer(object_of(entry, objects)) for entry in spec.explainers]
    metrics = [as_metric(object_of(entry, objects)) for entry in spec.metrics]
    for metric in metrics:
        check_without_people(metric)
    _check_other(spec, metrics)
    found = find(object_of(spec.dataset, objects))
    published, split = found.load_usual(spec.split)
    spec = spec.model_copy(update={"split": split})
    if len(published) == 0:
        raise UserError(f"the split {spec.split} of {spec.dataset} is empty")
    further = _further_columns(published, metrics, found.name)
    published = with_pictures(published, further)
    check_further(published, further)
    rows = labelled(published, spec.label_column)
    check_samples(rows)
    _say_what_is_missing(published, metrics)
    names = label_names(rows)
    selection = selection_of(spec.only, rows, names)
    classifier = load_classifier(
        object_of(spec.model, objects),
        device=spec.device if device is None else device,
        precision=spec.precision,
        channels_last=spec.channels_last,
        activation=spec.activation,
    )
    contents = {name: column_of(published, name) for name in further}
    rows, ids = readable(rows, further), _ids(rows)
    classes = _classes(spec, classifier, Samples(rows, ids))
    mapped = known_maps.resolved(object_of(spec.label_map, objects), names, classifier.labels, classes)
    members, unlabelled = _members(spec.target, metrics, rows, classifier.labels, classes, mapped)
    if members is None and selection is not None and selection.correct:
        raise UserError(f"--only correct needs labels: {unlabelled}")
    known = (names, members) if names is not None and members is not None else ((), ())
    groups = load_groups(object_of(spec.groups, objects), classifier.labels, classes, *known)
    rule = load_rule(spec.target, classifier.labels, classes, groups)
    check_known(rule, ids)
    content, digests = content_of(published)
    order = order_of(ids, group_names(rows), spec.seed, content)
    samples = order.first(spec.limit)
    published_ids, rows, ids = ids, rows.select(order.positions), [ids[position] for position in order.positions]
    check_ids(rule, ids[:samples])
    if rule.name == "label":
        labels = dict(zip(ids[:samples], rows["label"][:samples], strict=True))
        _check_labelled(labels)
        _check_explainable(labels, names or [], members or [], selection)
    if samples < len(rows):
        selection_of(spec.only, rows.select(range(samples)), names)
    needed = ids[:samples] if selection is None else ()
    precomputed = _precomputed(spec, objects, classifier, rows, published_ids, needed)
    retraining = [metric for metric in metrics if metric.keeps]
    if retraining and precomputed:
        raise UserError(
            f"{retraining[0].name} needs maps of the training images too; leave --maps out, or give the method as a "
            "function"
        )
    controls = _controls(explainers) if retraining else []
    context = RunContext(
        spec=spec,
        out=out,
        explainers=list(dict.fromkeys([*explainers, *precomputed, *controls])),
        training=training_splits(found, spec.label_column, names) if retraining else {},
        base=base_of(spec.model) if any(map(starts_from_base, retraining)) else None,
        controls=frozenset(controls) - set(explainers),
        metrics=list(dict.fromkeys(metrics)),
        found=found,
        data=Samples(
            rows,
            ids,
            [digests[position] for position in order.positions],
            {name: [own[place] for place in order.positions if own] for name, (_, own) in contents.items()},
        ),
        fingerprint=content,
        columns={name: digest for name, (digest, _) in contents.items()},
        samples=samples,
        names=names,
        classifier=classifier,
        classes=classes,
        members=members,
        unlabelled=unlabelled,
        groups=groups,
        rule=rule,
        selection=selection,
        maps={hash_of(one.identity): entry for one, entry in zip(precomputed, spec.maps, strict=True)},
    )
    if spec.other_model is None:
        return context
    return replace(context, other=_of_other_model(context, published, object_of(spec.other_model, objects)))


def starts_from_base(metric: Metric) -> bool:
    """Whether the networks of a metric start from the weights that the classifier's training started from."""
    return bool(metric.keeps) and dict(metric.options).get("initial") == "base"


def _check_other(spec: RunSpec, metrics: list[Metric]) -> None:
    """Raises: UserError for a metric that compares two classifiers where there is one."""
    asking = [metric.name for metric in metrics if "other" in metric.needs]
    if asking and spec.other_model is None:
        raise UserError(
            f"{asking[0]} compares with a second classifier; give --other-model DIR --other-label COLUMN, such as one "
            "of scenes that `saliency-bench train --label-column scene` makes, or leave the metric out"
        )


def _of_other_model(context: RunContext, published: datasets.Dataset, model: Any) -> RunContext:
    """The same run of another classifier, whose label is another column. published: the dataset as it was loaded.

    Raises: UserError for one that takes images prepared in another way, or whose classes are not those of the column.
    """
    spec, known, column = context.spec, context.classifier, context.spec.other_label or ""
    rows = labelled(published, column)
    names = _class_names(rows)
    classifier = load_classifier(model, device=known.device, precision=spec.precision, channels_last=spec.channels_last)
    if classifier.geometry != known.geometry:
        raise UserError(
            f"the other model, {classifier.id}, takes images {classifier.geometry}, the model {known.geometry}; give "
            "two that prepare images alike"
        )
    spec = spec.model_copy(update={"model": spec.other_model, "label_column": column, "target": "label",
                                   "other_model": None, "other_label": None})  # fmt: skip
    classes = _classes(spec, classifier, context.data)
    try:
        members = match(names, classifier.labels, classes, None)
    except UserError as error:
        reason = str(error).partition(";")[0]
        raise UserError(f"{reason}; the classes of --other-model must be those of --other-label {column}") from error
    return replace(
        context,
        spec=spec,
        columns={column: column_of(published, column)[0]},
        names=names,
        classifier=classifier,
        classes=classes,
        members=members,
        unlabelled="",
        groups=None,
        rule=load_rule("label", classifier.labels, classes, None),
        selection=None,
        folder="other_predictions",
    )


def _controls(explainers: list[Explainer]) -> list[Explainer]:
    """What retraining metrics are compared with: chance, and the same maps when they say less about where."""
    return [as_explainer("random"), *(blurred(explainer) for explainer in explainers if not explainer.baseline)]


def _precomputed(
    spec: RunSpec,
    objects: Objects,
    classifier: Classifier,
    rows: datasets.Dataset,
    ids: list[str],
    needed: Collection[str],
) -> list[Explainer]:
    """The explainers of `spec.maps`. ids: of all samples, in the dataset's own order; needed: that must have a map."""
    if not spec.maps:
        return []
    frame = classifier.geometry.frame or classifier.prepare([rows[0]]).images.shape[2:]
    files = {image_id: quoted and f"{quoted}.npy" for image_id, quoted in zip(ids, map(quoted_id, ids), strict=True)}
    found = []
    for entry in spec.maps:
        name, _, path = entry.partition("=") if isinstance(entry, str) else (entry.name, "", "")
        source = Path(path).expanduser() if path else object_of(entry, objects)
        fix = "add them, or leave images out with --limit or --only"
        found.append(explainer_of(name, source, files, (frame[0], frame[1]), spec.seed, needed, fix))
    return found


def _members(
    target: str,
    metrics: list[Metric],
    rows: datasets.Dataset,
    model: list[str] | None,
    classes: int,
    label_map: Any,
) -> tuple[Members | None, str]:
    """(the model's classes of each class of the dataset, or None, and why there are none).

    Raises: UserError where the target or a metric needs labels, or a label map is given, and they do not match.
    """
    asking = [metric.name for metric in metrics if "labels" in metric.needs]
    needed = "--target label" if target == "label" else asking[0] if asking else ""
    try:
        return match(_class_names(rows), model, classes, label_map), ""
    except UserError as error:
        if label_map is not None:
            raise
        if needed:
            fix = "--target predicted needs none" if target == "label" and not asking else "leave it out"
            raise UserError(f"{error}; {needed} needs labels, {fix}") from error
        return None, str(error).partition(";")[0]


def _class_names(rows: datasets.Dataset) -> list[str]:
    """Raises: UserError that says what the dataset has instead."""
    if (names := label_names(rows)) is not None:
        return names
    if (kind := rows.features.get("label")) is None:
        listed = ", ".join(rows.column_names)
        if listed == "image":
            raise UserError(
                'the dataset has no column "label" (it has: image); pictures of your own become a dataset with labels '
                "and masks by `saliency-bench build folder --images DIR --out NEW`"
            )
        raise UserError(f'the dataset has no column "label" (it has: {listed}); name another with --label-column')
    raise UserError(
        f"the column label holds {kind.dtype} without names of classes; give them with dataset.cast_column('label', "
        "datasets.ClassLabel(names=[...])), or as text"
    )


def _further_columns(rows: datasets.Dataset, metrics: list[Metric], name: str) -> list[str]:
    """The columns that metrics ask for and that are there; a line on each that is not. name: of the dataset."""
    asking: dict[str, list[str]] = {}
    for metric in metrics:
        for column in metric.columns:
            asking.setdefault(column, []).append(metric.name)
    for column in asking.keys() - set(rows.column_names):
        shown = f"{', '.join(asking[column])} {'show' if len(asking[column]) > 1 else 'shows'} -"
        complain(f"the dataset {name} has no column {column} (it has: {', '.join(rows.column_names)}): {shown}")
    return [column for column in asking if column in rows.column_names]


def _say_what_is_missing(rows: datasets.Dataset, metrics: list[Metric]) -> None:
    """One line: which columns there are not, and what follows from it."""
    asking = [metric.name for metric in metrics if "masks" in metric.needs]
    held = rows.data.column("mask") if "mask" in rows.column_names else None
    missing = ["image_id"] * ("image_id" not in rows.column_names) + ["mask"] * (held is None and bool(asking))
    follows = ["samples are called by their positions"] if "image_id" in missing else []
    if asking and (held is None or held.null_count == len(held)):
        follows.append(f"without masks {', '.join(asking)} {'show' if len(asking) > 1 else 'shows'} -")
    named = f"has no column {' and no column '.join(missing)} (it has: {', '.join(rows.column_names)})"
    if follows:
        complain(f"the dataset {named if missing else 'has no masks'}: {'; '.join(follows)}")


def _check_labelled(labels: dict[str, int | None]) -> None:
    """Raises: UserError for an image without label."""
    for image_id, label in labels.items():
        if label is None or label < 0:
            raise UserError(f"image {image_id} has no label; leave it out of the dataset, or give --target predicted")


def _check_explainable(labels: dict[str, int], names: list[str], members: Members, selection: Selection | None) -> None:
    """Raises: UserError for a label without a class of the model, as far as conditions do not leave out its samples."""
    chosen = None if selection is None else selection.values.get("label")
    if all(members) or (selection is not None and chosen is None):  # else its chunk says so
        return
    for image_id, label in labels.items():
        if not members[label] and (chosen is None or names[label] in chosen):
            raise UserError(f"image {image_id} is labelled {names[label]}, {NO_CLASS}")


def _classes(spec: RunSpec, classifier: Classifier, data: Samples) -> int:
    """The number of logits, from the first sample that can be read and that the model takes."""
    failures: list[Exception] = []
    for number in range(len(data.ids)):
        if (batch := read_chunk(data, classifier, [number], spec.strict).batch) is not None:
            try:
                with torch.no_grad():
                    logits, again = (classifier.eval()(batch.images) for _ in range(2))
                scale = float(logits.nan_to_num(0, 0, 0).abs().max())
                if not torch.allclose(logits, again, rtol=0, atol=SAME * scale, equal_nan=True):
                    complain(f"{classifier.id} {UNSTEADY}")
                return logits.shape[1]
            except (RefusedImagesError, RuntimeError, ArithmeticError, AssertionError, LookupError) as error:
                failures.append(error)
            if len(failures) == spec.batch_size:
                break
    if failures:
        first = failures[0]
        line = f"{reason_of(first, classifier.id)} for each of the first {len(failures)} images"
        raise first if isinstance(first, UserError) else UserError(line) from first
    raise UserError(f"no image of the split {spec.split} of {spec.dataset} can be read")


def _ids(rows: datasets.Dataset) -> list[str]:
    """Raises: UserError for an image id that occurs twice: records, draws and pictures go by it."""
    ids = sample_ids(rows)
    if len(set(ids)) < len(ids):
        twice, times = Counter(ids).most_common(1)[0]
        raise UserError(f"the image id {twice} occurs {times} times; every sample needs its own id")
    return ids
