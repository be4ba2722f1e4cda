"""Load the dataset, the model, the explainers and the metrics of a spec (`load`)."""

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

import torch

from saliency_bench.bound_explainer import Explainer, as_explainer, registered_explainer
from saliency_bench.bound_metric import Metric, as_metric, check_without_people, registered_metric
from saliency_bench.compute.checkpoint_writing import base_of
from saliency_bench.compute.classifiers.classifier import Classifier
from saliency_bench.compute.classifiers.own_networks import refuse_own
from saliency_bench.compute.context import RunContext, starts_from_base
from saliency_bench.compute.loaded import Retraining, RunQuestion
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
from saliency_bench.utils.hashing import hash_of


def load(spec: RunSpec, objects: Objects, device: torch.device | str | None = None) -> RunContext:
    """Load the objects that a spec names, and match the classes of dataset and model. Writes nothing.

    Names and options of explainers and metrics are checked before dataset and model are loaded.

    Args:
        spec: The settings.
        objects: The Python objects that the spec refers to.
        device: Device to compute on; None for the device in the spec.

    Raises:
        UserError: Something cannot be loaded, or the dataset and the models do not match.
    """
    out = Path(spec.out).absolute()
    # Only registered names are resolved: a string that names a file, in a spec from another person, must not be loaded.
    explainers = [registered_explainer(entry) if isinstance(entry, str) else as_explainer(object_of(entry, objects))
                  for entry in spec.explainers]  # fmt: skip
    metrics = [registered_metric(entry) if isinstance(entry, str) else as_metric(object_of(entry, objects))
               for entry in spec.metrics]  # fmt: skip
    for metric in metrics:
        check_without_people(metric)
    _check_other(spec, metrics)
    table = table_of(spec, object_of(spec.dataset, objects), metrics)
    spec = table.spec
    for model in (spec.model, spec.other_model):
        if isinstance(model, str):
            refuse_own(model)
    classifier = load_with_texts(
        object_of(spec.model, objects),
        texts_for(spec, objects, table.names),
        is_required=spec.other_model is None and not names_a_model(spec.target),
        device=spec.device if device is None else device,
        activation=spec.activation,
        **spec.computing,
    )
    question = question_of(spec, objects, table, metrics, classifier)
    # The selection is not stored in the table: a copy of the table would recompute its fingerprint from all pictures.
    selection = explainable(question, table)
    precomputed = _precomputed(spec, objects, classifier, table, selection)
    retraining = [metric for metric in metrics if metric.declaration.keeps]
    controls = _controls(explainers) if retraining else []
    context = RunContext(
        spec=spec,
        out=out,
        explainers=list(dict.fromkeys([*explainers, *precomputed, *controls])),
        metrics=list(dict.fromkeys(metrics)),
        data=table,
        columns={name: digest for name, (digest, _) in table.contents.items()},
        question=question,
        classifier=classifier,
        selection=selection,
        maps={hash_of(explainer.identity): entry for explainer, entry in zip(precomputed, spec.maps, strict=True)},
        retraining=Retraining(
            rows=training_splits(table.source, spec.label_column, table.names) if retraining else {},
            base=base_of(spec.model) if any(map(starts_from_base, retraining)) else None,
            controls=frozenset(controls) - set(explainers),
        ),
    )
    if spec.other_model is None:
        return context
    return replace(context, other=_of_other_model(context, objects))


def _check_other(spec: RunSpec, metrics: list[Metric]) -> None:
    """Raise UserError for a metric that compares two classifiers if only one is given."""
    asking = [metric.name for metric in metrics if "other" in metric.inputs]
    if asking and spec.other_model is None:
        raise UserError(
            f"{asking[0]} compares with a second classifier; use --other-model DIR --other-label COLUMN, for example "
            "a model of scenes from `saliency-bench train --label-column scene`, or leave the metric out"
        )


def _of_other_model(context: RunContext, objects: Objects) -> RunContext:
    """Return the same run for the other classifier, which has another label column.

    Args:
        context: The run.
        objects: The Python objects that the spec refers to.

    Raises:
        UserError: The model prepares images differently, or its classes differ from the classes of the column.
    """
    spec, known, column = context.spec, context.classifier, context.spec.other_label or ""
    rows = labelled(context.data.published, column)
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
            f"{known.geometry}; "
            "use two models with the same preparation of images"
        )
    spec = spec.model_copy(update={"model": spec.other_model, "label_column": column, "target": "label",
                                   "other_model": None, "other_label": None, "mask_values": None})  # fmt: skip
    classes = logits_of(spec, classifier, context.data.samples)
    try:
        members = match(names, classifier.labels, classes, None)
    except UserError as error:
        reason = str(error).partition(";")[0]
        raise UserError(f"{reason}; use a --other-model with the classes of --other-label {column}") from error
    return replace(
        context,
        spec=spec,
        columns={column: column_of(context.data.published, column)[0]},
        question=RunQuestion(
            names=names,
            classes=classes,
            activation=classifier.activation,
            members=members,
            unlabelled="",
            groups=None,
            rule=load_rule("label", classifier.labels, classes, None),
        ),
        classifier=classifier,
        selection=None,
        folder="other_predictions",
    )


def _controls(explainers: list[Explainer]) -> list[Explainer]:
    """Return the controls of retraining metrics: random maps, and blurred maps of each explainer."""
    return [as_explainer("random"), *(blurred(explainer) for explainer in explainers if not explainer.baseline)]


def _precomputed(
    spec: RunSpec, objects: Objects, classifier: Classifier, table: SplitTable, selection: Selection | None
) -> list[Explainer]:
    """Return the explainers of `spec.maps`. Without a selection, each of the run's samples must have a map."""
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
        fix = "add them, or leave images out with --limit or --only"
        explainers.append(explainer_of(name, source, files, (frame[0], frame[1]), spec.seed, needed, fix))
    return explainers
