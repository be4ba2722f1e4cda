"""Build the prediction task of a run: match the classes of dataset and model, and choose the target of each sample."""

from dataclasses import replace
from typing import Any

import datasets
import torch

from saliency_bench.bound_metric import Metric
from saliency_bench.compute.classifiers.classifier import Classifier, RefusedImagesError
from saliency_bench.compute.loaded import RunQuestion
from saliency_bench.compute.loading.predicted_by import predicted_by
from saliency_bench.compute.loading.table import SplitTable
from saliency_bench.compute.maps.map_provider import reason_of
from saliency_bench.compute.python_objects import Objects, object_of
from saliency_bench.compute.reading import ALL, Selection, SplitRows, label_names, read_batch, selection_of
from saliency_bench.compute.targets import known_maps
from saliency_bench.compute.targets.class_groups import load_groups
from saliency_bench.compute.targets.label_maps import Members, is_unnamed, match
from saliency_bench.compute.targets.rules import TargetRule, check_ids, check_known, load_rule
from saliency_bench.errors import UserError
from saliency_bench.spec import PREDICTED_BY, RunSpec
from saliency_bench.target_weights import BINARY
from saliency_bench.utils.messages import complain

SAME = 1e-3  # relative to the largest logit; a GPU may change the last bits
UNSTEADY = (
    "returns different logits when it is called twice on the same image, perhaps because its forward pass draws "
    "random numbers or counts calls; its scores cannot be reproduced"
)


def question_of(
    spec: RunSpec, objects: Objects, table: SplitTable, metrics: list[Metric], model: Classifier
) -> RunQuestion:
    """Match the classes of dataset and model, and read groups and targets.

    Raises:
        UserError: Files do not match the dataset and model, or a sample lacks the label or class that the target needs.
    """
    rows, names, selection = table.rows, table.names, table.selection
    classes = logits_of(spec, model, SplitRows(rows, table.ids))
    mapped = known_maps.resolved(object_of(spec.label_map, objects), names, model.labels, classes)
    members, unlabelled = _members(spec.target, metrics, rows, model.labels, classes, mapped)
    by_position = members is not None and mapped is None and (model.labels is None or is_unnamed(model.labels))
    if by_position:
        complain(_positions(model, names or []))
    if members is None and selection is not None and selection.correct:
        raise UserError(f"--only correct needs labels: {unlabelled}")
    named_by = None
    known = (names, members) if names is not None and members is not None else ((), ())
    groups = load_groups(object_of(spec.groups, objects), model.labels, classes, *known)
    if spec.target.startswith(PREDICTED_BY):
        rule, named_by = predicted_by(spec, objects, table, model, classes, members)
    else:
        rule = load_rule(spec.target, model.labels, classes, groups)
        check_known(rule, table.ids)
        check_ids(rule, table.samples.ids[: table.count])
    _check_samples(rule, table)
    return RunQuestion(names, classes, model.activation, members, unlabelled, groups, rule, named_by, by_position)


def _positions(model: Classifier, names: list[str]) -> str:
    """Return the message about the class that is assumed for each logit if the model has no class names."""
    if model.activation == BINARY:
        which = f"a positive logit is assumed to mean {names[1]}, a negative one {names[0]}"
    else:
        which = f"its logits are assumed to stand for {', '.join(names[:3])}{', ...' * (len(names) > 3)}"
    return (
        f"{model.id} has no class names: {which}, in the order of the dataset; if that is wrong, use "
        "load_classifier(model, labels=[...]) or --label-map FILE"
    )


def explainable(question: RunQuestion, table: SplitTable) -> Selection | None:
    """Return the selection of a run. It excludes labels that the label map assigns to none of the model's classes.

    If the run explains labels, samples with an excluded label are classified but not explained, and a message is
    printed.

    Raises:
        UserError: No sample remains.
    """
    without = frozenset(index for index, member in enumerate(question.members or []) if not member)
    if question.rule.name != "label" or not without:
        return table.selection
    labels, names = table.samples.rows["label"][: table.count], table.names or []
    chosen = None if table.selection is None else table.selection.values.get("label")
    wanted = [label for label in labels if label is not None and (chosen is None or names[label] in chosen)]
    if set(wanted) <= without:
        shown = ", ".join(sorted({names[label] for label in wanted})[:3])
        raise UserError(f"no sample shows a class of the model (labels: {shown}); use --target predicted")
    if count := sum(label in without for label in wanted):
        complain(f"{count} of {len(labels)} samples show no class of the model: they are classified, but have no maps")
    return replace(table.selection or Selection(False, False, {}, table.names), without=without)


def _check_samples(rule: TargetRule, table: SplitTable) -> None:
    """Raise UserError if a sample of the run has no target, or the selection is empty."""
    samples, ids, rows = table.count, table.samples.ids, table.samples.rows
    for image_id, label in zip(ids[:samples], rows["label"][:samples], strict=True) if rule.name == "label" else ():
        if label is None or label < 0:
            raise UserError(f"image {image_id} has no label; leave it out of the dataset, or use --target predicted")
    if samples < len(rows):
        selection_of(table.spec.only, rows.select(range(samples)), table.names)


def _members(
    target: str,
    metrics: list[Metric],
    rows: datasets.Dataset,
    model: list[str] | None,
    classes: int,
    label_map: Any,
) -> tuple[Members | None, str]:
    """Return (the model's classes for each class of the dataset, ""), or (None, the reason why they are not matched).

    Raises:
        UserError: The target or a metric needs labels, or a label map is given, but the classes do not match.
    """
    asking = [metric.name for metric in metrics if "labels" in metric.inputs]
    needed = "--target label" if target == "label" else asking[0] if asking else ""
    try:
        return match(class_names(rows), model, classes, label_map, one_each=ALL not in rows.column_names), ""
    except UserError as error:
        if label_map is not None:
            raise
        if fitting := known_maps.fitting(label_names(rows), model, classes):
            error = UserError(f"{str(error).partition(';')[0]}; --label-map {fitting} matches some of these classes")
        if needed:
            fix = "use --target predicted" if target == "label" and not asking else "leave it out"
            raise UserError(f"{error}; {needed} needs labels, so {fix}") from error
        return None, str(error) if fitting else str(error).partition(";")[0]


def class_names(rows: datasets.Dataset) -> list[str]:
    """Return the names of the dataset's classes. If there are none, raise a UserError that lists the columns."""
    if (names := label_names(rows)) is not None:
        return names
    if (kind := rows.features.get("label")) is None:
        listed = ", ".join(rows.column_names)
        if listed == "image":
            raise UserError(
                'the dataset has no column "label" (it has: image); build a dataset with labels and masks from your '
                "own pictures with `saliency-bench build folder --images DIR --out NEW`"
            )
        raise UserError(f'the dataset has no column "label" (it has: {listed}); choose the column with --label-column')
    raise UserError(
        f'the column "label" has the type {kind.dtype} and no class names; add names with '
        "dataset.cast_column('label', datasets.ClassLabel(names=[...])), or convert the labels to strings"
    )


def logits_of(spec: RunSpec, classifier: Classifier, data: SplitRows) -> int:
    """Return the number of logits for the first sample that can be read and that the model accepts."""
    failures: list[Exception] = []
    unread = ""
    for number in range(len(data.ids)):
        read = read_batch(data, classifier, [number], spec.strict)
        unread = unread or next((f": {data.ids[number]}: {reason}" for reason in read.faults.values()), "")
        if read.samples is not None:
            try:
                with torch.no_grad():
                    logits, again = (classifier.eval()(read.samples.batch.images) for _ in range(2))
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
    raise UserError(f"no image in the split {spec.split} of {spec.dataset} can be read{unread}")
