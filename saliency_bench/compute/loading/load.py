"""Load the dataset, the model, the explainers and the metrics of a spec (`load`)."""

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

import torch

from saliency_bench.bound_explainer import Explainer, as_explainer, registered_explainer
from saliency_bench.bound_metric import Metric, as_metric, check_without_people, registered_metric
from saliency_bench.compute.cells import starts_from_base
from saliency_bench.compute.checkpoint_writing import base_of
from saliency_bench.compute.classifiers.classifier import Classifier
from saliency_bench.compute.classifiers.own_networks import refuse_own
from saliency_bench.compute.loaded import OTHER, Pairs, Retraining, RunModel, RunQuestion
from saliency_bench.compute.loading.predicted_by import names_a_model
from saliency_bench.compute.loading.question import class_names, explainable, logits_of, question_of
from saliency_bench.compute.loading.table import SplitTable, table_of
from saliency_bench.compute.loading.texts import load_with_texts, texts_for
from saliency_bench.compute.maps.composing import blurred
from saliency_bench.compute.precomputed import explainer_of, quoted_id
from saliency_bench.compute.python_objects import Objects, object_of
from saliency_bench.compute.reading import Selection, labelled, training_splits
from saliency_bench.compute.targets.label_maps import match
from saliency_bench.compute.targets.rules import load_rule
from saliency_bench.data.fingerprints import column_of
from saliency_bench.errors import UserError
from saliency_bench.spec import RunSpec


def load(
    spec: RunSpec, objects: Objects, device: torch.device | str | None = None
) -> tuple[SplitTable, RunModel, Pairs]:
    """Load what a spec refers to: the dataset, the model, and the explainers with their metrics. Nothing is written.

    Names and options of explainers and metrics are checked before dataset and model are loaded.

    Args:
        spec: The settings.
        objects: The Python objects that the spec refers to.
        device: Device to compute on; None for the device in the spec.

    Raises:
        UserError: Something cannot be loaded, or the dataset and the models do not match.
    """
    # Only registered names are resolved: a string that names a file, in a spec from another person, must not be loaded.
    explainers = [registered_explainer(entry) if isinstance(entry, str) else as_explainer(object_of(entry, objects))
                  for entry in spec.explainers]  # fmt: skip
    metrics = [registered_metric(entry) if isinstance(entry, str) else as_metric(object_of(entry, objects))
               for entry in spec.metrics]  # fmt: skip
    for metric in metrics:
        check_without_people(metric)
    _check_other(spec, metrics)
    data = table_of(spec, object_of(spec.dataset, objects), metrics)
    spec = data.spec
    for name in (spec.model, spec.other_model):
        if isinstance(name, str):
            refuse_own(name)
    classifier = load_with_texts(
        object_of(spec.model, objects),
        texts_for(spec, objects, data.names),
        is_required=spec.other_model is None and not names_a_model(spec.target),
        device=spec.device if device is None else device,
        activation=spec.activation,
        **spec.computing,
    )
    question = question_of(spec, objects, data, metrics, classifier)
    question = replace(question, selection=explainable(question, data))
    precomputed = _precomputed(spec, objects, classifier, data, question.selection)
    metrics = list(dict.fromkeys(metrics))
    keeping = [metric for metric in metrics if metric.declaration.keeps]
    retraining = Retraining(
        rows=training_splits(data.source, spec.label_column, data.names) if keeping else {},
        base=base_of(spec.model) if any(map(starts_from_base, keeping)) else None,
    )
    model = RunModel(classifier, question, spec.label_column, retraining=retraining)
    if spec.other_model is not None:
        model = replace(model, other=_other_model(objects, data, model))
    pairs = dict.fromkeys([*explainers, *precomputed], metrics)
    controls = _controls(explainers) if keeping else []
    pairs |= {control: keeping for control in controls if control not in pairs}
    return data, model, pairs


def _check_other(spec: RunSpec, metrics: list[Metric]) -> None:
    """Raise UserError if a metric compares two classifiers but the run has only one."""
    asking = [metric.name for metric in metrics if "other" in metric.inputs]
    if asking and spec.other_model is None:
        raise UserError(
            f"{asking[0]} needs a second classifier; use --other-model DIR --other-label COLUMN, for example with a "
            "scene classifier trained with `saliency-bench train --label-column scene`, or leave the metric out"
        )


def _other_model(objects: Objects, data: SplitTable, model: RunModel) -> RunModel:
    """Return the other network, which predicts a different label column of the same samples.

    Raises:
        UserError: The model prepares images differently, or its classes differ from the classes of the column.
    """
    spec, known, column = data.spec, model.classifier, data.spec.other_label or ""
    rows = labelled(data.published, column)
    names = class_names(rows)
    classifier = load_with_texts(
        object_of(spec.other_model, objects),
        texts_for(spec, objects, names),
        is_required=known.prompts is None and not names_a_model(spec.target),
        device=known.device,
        **spec.computing,
    )
    if classifier.geometry != known.geometry:
        raise UserError(
            f"the other model, {classifier.id}, takes images {classifier.geometry}, but the model takes "
            f"{known.geometry}; use two models that prepare images in the same way"
        )
    classes = logits_of(spec, classifier, data.samples)
    try:
        members = match(names, classifier.labels, classes, None)
    except UserError as error:
        reason = str(error).partition(";")[0]
        raise UserError(
            f"{reason}; use an --other-model whose classes match those of --other-label {column}"
        ) from error
    question = RunQuestion(
        names=names,
        classes=classes,
        activation=classifier.activation,
        members=members,
        unlabelled="",
        groups=None,
        rule=load_rule("label", classifier.labels, classes, None),
    )
    return RunModel(classifier, question, column, OTHER, column_of(data.published, column)[0])


def _controls(explainers: list[Explainer]) -> list[Explainer]:
    """Return the controls that retraining metrics need: random maps, and a blurred variant of each explainer."""
    return [as_explainer("random"), *(blurred(explainer) for explainer in explainers if not explainer.baseline)]


def _precomputed(
    spec: RunSpec, objects: Objects, classifier: Classifier, table: SplitTable, selection: Selection | None
) -> list[Explainer]:
    """Return the explainers of `spec.maps`. If there is no selection, every sample of the run must have a map."""
    if not spec.maps:
        return []
    needed: Collection[str] = table.samples.ids[: table.count] if selection is None else ()
    frame = classifier.geometry.frame or classifier.prepare([table.samples.rows[0]]).images.shape[2:]
    quoted = map(quoted_id, table.ids)
    files = {image_id: name and f"{name}.npy" for image_id, name in zip(table.ids, quoted, strict=True)}
    explainers = []
    for entry in spec.maps:
        name, _, path = entry.partition("=") if isinstance(entry, str) else (entry.name, "", "")
        source = Path(path).expanduser() if path else object_of(entry, objects)
        fix = "add the missing maps, or leave their images out with --limit or --only"
        explainers.append(explainer_of(name, source, files, (frame[0], frame[1]), spec.seed, needed, fix))
    return explainers
