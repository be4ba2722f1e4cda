"""Measure a classifier's accuracy on images that are rotated, shifted or mirrored as in saliency_consistency."""

from dataclasses import replace
from typing import Any

import pyarrow as pa

from saliency_bench.compute.loaded import RunModel
from saliency_bench.compute.loading.load import load
from saliency_bench.compute.loading.table import SplitTable
from saliency_bench.compute.predictions import answers
from saliency_bench.compute.python_objects import describe
from saliency_bench.compute.scoring.transforms import TRANSFORMS
from saliency_bench.errors import unknown
from saliency_bench.read.accuracy import quality
from saliency_bench.recipes.suites.suite_jobs import SuiteJob
from saliency_bench.utils.files import read_json, write_json


def accuracy_under(data: SplitTable, model: RunModel, transform: str = "") -> dict[str, Any]:
    """Measure `accuracy` and `top5`, with intervals, on a run's samples after a transform.

    Args:
        data: Samples of the run.
        model: Network of the run.
        transform: One of TRANSFORMS. The transform is applied to the preprocessed images, and empty areas are filled
            with black. With "", the images are not transformed, and the accuracies are those in the run's summary.

    Returns:
        {"accuracy": ..., "top5": ...}. `top5` is None for five classes or fewer. For sigmoid classifiers, the accuracy
        is the mean average precision.

    Raises:
        UserError: The transform is unknown.
    """
    if transform and transform not in TRANSFORMS:
        raise unknown("transform", transform, TRANSFORMS)
    rows = []
    for batch in data.batches:
        read = data.read(model.classifier, batch)
        if transform and read.samples is not None:
            images = TRANSFORMS[transform].there(read.samples.batch.images)
            changed = replace(read.samples, batch=replace(read.samples.batch, images=images))
            read = read._replace(samples=changed)
        rows += answers(model.classifier, model.question, read, data.schema.names)
    table = pa.Table.from_pylist(rows[: data.count], schema=data.schema)
    return quality(table, model.question.members or [], model.question.activation, data.spec.seed)


def measure(job: SuiteJob) -> None:
    """Measure the accuracies that tables need and that have not been stored yet. Store them in the run's folder."""
    measured = accuracies_of(job)
    missing = [transform for transform in job.transforms if transform not in measured]
    if missing:
        data, model, _ = load(*describe(dict(job.spec)))
        measured |= {transform: accuracy_under(data, model, transform) for transform in missing}
        write_json(job.accuracies, {"of": _identity(job), "transforms": measured})


def accuracies_of(job: SuiteJob) -> dict[str, dict[str, Any]]:
    """Return {transform: {"accuracy": ..., "top5": ...}} if measured for the run in its current state, else {}."""
    if not job.accuracies.is_file():
        return {}
    content = read_json(job.accuracies)
    return content["transforms"] if content["of"] == _identity(job) else {}


def _identity(job: SuiteJob) -> list:
    """Return everything that an accuracy depends on: the classifier, the images and the number of images."""
    summary = read_json(job.folder / "summary.json")
    return [summary["model"]["digest"], summary["dataset"]["fingerprint"], summary["dataset"]["used"]]
