"""Accuracy of a classifier on images that are turned, shifted or mirrored, as saliency_consistency does it."""

from dataclasses import replace
from typing import Any

import pyarrow as pa

from saliency_bench.engine.context import RunContext
from saliency_bench.engine.loading.load import load
from saliency_bench.engine.predictions import answers, prediction_schema
from saliency_bench.engine.python_objects import describe
from saliency_bench.engine.suites.jobs import Job
from saliency_bench.errors import unknown
from saliency_bench.results.accuracy import quality
from saliency_bench.scoring.transforms import TRANSFORMS
from saliency_bench.utils.files import read_json, write_json


def accuracy_under(context: RunContext, transform: str = "") -> dict[str, Any]:
    """`accuracy` and `top5` of a run's samples under a transform, with intervals, as a summary has them of its model.

    context: of `engine.loading.load`; nothing of its folder is read or written. transform: one of TRANSFORMS, applied
    to the images in the prepared frame, what comes from outside being black; "": none, which gives the summary's own.
    `top5` is None with five classes or fewer; a sigmoid's accuracy is its mean average precision.

    Raises: UserError for an unknown transform.
    """
    if transform and transform not in TRANSFORMS:
        raise unknown("transform", transform, TRANSFORMS)
    rows = []
    for number in context.chunks:
        chunk = context.chunk(number)
        if transform and chunk.batch is not None:
            images = TRANSFORMS[transform].there(chunk.batch.images)
            chunk = replace(chunk, batch=replace(chunk.batch, images=images))
        rows += answers(context, chunk)
    table = pa.Table.from_pylist(rows[: context.samples], schema=prediction_schema(context))
    return quality(table, context.identity.labels, context.identity.activation, context.spec.seed)


def measure(job: Job) -> None:
    """Write the accuracies that tables ask for beside a finished run, unless they are there."""
    known = accuracies_of(job)
    left = [transform for transform in job.transforms if transform not in known]
    if not left:
        return
    spec, objects = describe(dict(job.spec))
    context = load(spec, objects)
    found = known | {transform: accuracy_under(context, transform) for transform in left}
    write_json(job.accuracies, {"of": _identity(job), "transforms": found})


def accuracies_of(job: Job) -> dict[str, dict[str, Any]]:
    """{transform: "accuracy" and "top5"} that are there, of the run as it is now."""
    if not job.accuracies.is_file():
        return {}
    found = read_json(job.accuracies)
    return found["transforms"] if found["of"] == _identity(job) else {}


def _identity(job: Job) -> list:
    """What an accuracy depends on: classifier, images, how many of them."""
    summary = read_json(job.folder / "summary.json")
    return [summary["model"]["digest"], summary["dataset"]["fingerprint"], summary["dataset"]["used"]]
