"""Load the target rule `predicted-by:MODEL`: maps explain the class that another model predicts.

If MODEL is the name of a model, this model first predicts the samples of the run. If MODEL is the folder of a model's
run on the same data, the predictions in the folder are used. The cells are the same in both cases. The identity of the
cells includes the other model's weights, geometry and arithmetic, and the order of its classes if this order differs
from that of the explained model's classes. The identity includes neither the origin of the predictions nor the number
of samples.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from saliency_bench.compute.classified import classified
from saliency_bench.compute.classifiers.classifier import Classifier
from saliency_bench.compute.classifiers.own_networks import RUN_FIRST, refuse_own
from saliency_bench.compute.fixed_answers import answers_of
from saliency_bench.compute.loading.table import SplitTable
from saliency_bench.compute.loading.texts import load_with_texts, texts_for
from saliency_bench.compute.python_objects import Objects
from saliency_bench.compute.reading import read_batch
from saliency_bench.compute.targets.label_maps import Members, is_unnamed, same_classes
from saliency_bench.compute.targets.rules import TargetRule, ordered_classes
from saliency_bench.compute.targets.terms import TargetTerms
from saliency_bench.errors import UserError, one_line
from saliency_bench.read.manifest import MANIFEST, read_manifest
from saliency_bench.read.network_answers import NetworkAnswers, check_same_network
from saliency_bench.read.public_names import public_name
from saliency_bench.read.records import PREDICTIONS, check_columns, damaged, read_columns
from saliency_bench.spec import PREDICTED_BY, RunSpec
from saliency_bench.utils.hashing import hash_of
from saliency_bench.utils.messages import complain
from saliency_bench.utils.progress import bar

Predicted = Iterator[tuple[str, Sequence[float]]]  # (image id, logits)


def predicted_by(
    spec: RunSpec, objects: Objects, table: SplitTable, model: Classifier, classes: int, members: Members | None
) -> tuple[TargetRule, NetworkAnswers | None]:
    """Return the target rule for `predicted-by:MODEL`, and the logits of MODEL for fixed images.

    Args:
        spec: Settings of the run.
        objects: Python objects that the spec refers to.
        table: Samples of the run.
        model: Classifier of the run; targets are among its classes.
        classes: Number of logits of that classifier.
        members: For each class of the dataset, the matching classes of that classifier; None if unknown.

    Raises:
        UserError: MODEL cannot be loaded or lacks classes, its run used different data or too few samples, or MODEL
            has the same weights and settings as the run's model but different logits for fixed images.
    """
    name = spec.target.removeprefix(PREDICTED_BY)
    if not names_a_model(spec.target):
        labels, by_data, identity, title, answers, predicted = _of_run(Path(name).expanduser(), spec, table)
    else:
        refuse_own(name, RUN_FIRST)
        texts, is_required = texts_for(spec, objects, table.names), model.prompts is None and spec.other_model is None
        other = load_with_texts(name, texts, is_required, device=model.device, **spec.computing)
        by_data = [[number] for number in range(len(table.names or ()))]  # assumed for a model without class names
        labels, title = other.labels, public_name(other.id, other.repo is None)
        identity = _identity(other.digest, other.geometry.as_dict(), other.arithmetic)
        answers, predicted = answers_of(other, table.samples), _of_model(other, spec, table)
    if identity == _identity(model.digest, model.geometry.as_dict(), model.arithmetic):
        now = answers_of(model, table.samples)
        check_same_network(
            answers, now, model.arithmetic, f"{name} is a run of a different {model.id}", "repeat that run"
        )
        return TargetRule("predicted", "predicted"), None  # it is the run's own model
    by_id: dict[str, TargetTerms] = {}
    places: list[int] = []
    own_labels = _named_by_data(model.labels, members, classes, table)
    for image_id, logits in predicted:
        places = places or _places(
            _named_by_data(labels, by_data, len(logits), table), len(logits), own_labels, classes, name
        )
        by_id[image_id] = TargetTerms((places[ordered_classes(np.asarray(logits))[0]],))
    if places != list(range(len(places))):  # the models' classes are in different orders
        identity = f"{identity} {hash_of(places)}"
    return TargetRule(f"{PREDICTED_BY}{title}", f"predicted-by {identity}", by_id), answers


def _places(first: list[str] | None, count: int, second: list[str] | None, classes: int, name: str) -> list[int]:
    """Return the result of `same_classes`. Print a warning if only one of the models has class names."""
    places = same_classes(first, count, second, classes, name)
    if (first is None) != (second is None):
        unnamed, named = (name, "the model") if first is None else ("the model", name)
        complain(f"{unnamed} has no class names: its class 0 is assumed to be class 0 of {named}, and so on")
    return places


def _named_by_data(
    labels: list[str] | None, members: Members | None, count: int, table: SplitTable
) -> list[str] | None:
    """Return a model's class names, or else the dataset's class names if they cover all classes of the model."""
    if labels is not None and not is_unnamed(labels):
        return labels
    named = {
        places[0]: name for places, name in zip(members or (), table.names or (), strict=False) if len(places) == 1
    }
    return [named[place] for place in range(count)] if sorted(named) == list(range(count)) else None


def names_a_model(target: str) -> bool:
    """Return whether a target rule is `predicted-by:` with a model rather than the folder of a run."""
    name = Path(target.removeprefix(PREDICTED_BY)).expanduser()
    return target.startswith(PREDICTED_BY) and not (name / MANIFEST).is_file()


def _identity(digest: str, geometry: dict[str, Any], arithmetic: str) -> str:
    """Return a hash of everything that a model's predictions on a dataset depend on."""
    return hash_of(digest, geometry, arithmetic)


def _of_model(other: Classifier, spec: RunSpec, table: SplitTable) -> Predicted:
    """Compute and yield a model's predictions. The batches are the same as in a run of that model."""
    ordered, size = table.samples, spec.batch_size
    for start in bar(range(0, table.count, size), desc=f"predict with {other.id}", unit="batch"):
        positions = range(start, min(start + size, len(ordered.ids)))
        samples = read_batch(ordered, other, positions, spec.strict).samples
        if samples is not None:
            logits, faults = classified(other, samples.batch.images)
            ids = [image_id for index, image_id in enumerate(samples.batch.ids) if index not in faults]
            yield from zip(ids, (row.tolist() for row in logits), strict=True)


def _of_run(
    folder: Path, spec: RunSpec, table: SplitTable
) -> tuple[list[str] | None, Members, str, str, NetworkAnswers | None, Predicted]:
    """Return (labels, model classes per dataset class, identity, name, logits for fixed images, logits of samples).

    All values belong to the model of the run in `folder`. The model itself is not loaded, because its name cannot be
    trusted.

    Raises:
        UserError: The run has different or fewer samples.
    """
    manifest, path = read_manifest(folder), folder / "predictions.parquet"
    if (manifest.identity.fingerprint, manifest.identity.split) != (table.fingerprint, spec.split):
        raise UserError(f"{folder} is a run on different data, so its predictions cannot be targets here; use --target "
                        f"{PREDICTED_BY}MODEL, so that the model predicts these samples first")  # fmt: skip
    if not path.is_file():
        raise UserError(f"{folder} has no predictions yet (no {path.name}); finish that run first")
    known = set(read_columns(path, ["image_id"], PREDICTIONS)["image_id"].to_pylist())
    if missing := [image_id for image_id in table.samples.ids[: table.count] if image_id not in known]:
        raise UserError(f"{folder} has no prediction for {len(missing)} images, such as {missing[0]}; repeat that run "
                        "with the same --limit as this run")  # fmt: skip

    identity = manifest.identity
    title = public_name(str(manifest.spec.model) if manifest.model is None else manifest.model.id)
    return (
        manifest.class_names,
        identity.labels,
        _identity(identity.classifier, identity.geometry, identity.precision),
        title,
        manifest.answers.get("model"),
        _stored_logits(path),
    )


def _stored_logits(path: Path) -> Predicted:
    """Yield (image id, logits) from a run's predictions, or raise UserError if the numbers of logits differ."""
    file, classes = pq.ParquetFile(path, metadata=check_columns(path, ["logits"], PREDICTIONS)), 0
    try:
        for batch in file.iter_batches(1024, columns=["image_id", "logits"]):
            for image_id, logits in zip(*batch.to_pydict().values(), strict=True):
                classes = classes or len(logits or ())
                if logits and (len(logits) != classes or np.isnan(np.asarray(logits, float)).any()):
                    raise UserError(f"{path}: the logits of {one_line(ascii(image_id), 100)} are not {classes} numbers")
                if logits:
                    yield image_id, logits
    except (pa.ArrowException, OSError) as error:
        raise damaged(path, error) from error
