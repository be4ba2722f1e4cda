"""Create submissions from given scores, as a run with these scores would, without computing explanations."""

import json
from collections import Counter

import numpy as np
import pyarrow as pa

from saliency_bench import options
from saliency_bench.board.known import KnownDataset, Recomputed, Status, content_of, write_known
from saliency_bench.board.recorded import Recorded
from saliency_bench.board.submission import Submission
from saliency_bench.board.submission_schema import Result
from saliency_bench.bound_explainer import load_explainer
from saliency_bench.bound_metric import load_metric
from saliency_bench.read import records
from saliency_bench.read.cell import CellKey, ForwardPasses, Interval, as_json, bounds, by_metric
from saliency_bench.read.identity import Identity
from saliency_bench.read.statistics.clusters import cluster_codes
from saliency_bench.read.statistics.ranking import compare
from saliency_bench.read.summary import Outcome, numbers_of, result_of
from saliency_bench.target_weights import TargetRange
from saliency_bench.utils.hashing import hash_of

FINGERPRINT, DIGEST = "f" * 64, "d" * 32
IDS = [f"image {number:03d}" for number in range(60)]
SETTING = Identity(fingerprint=FINGERPRINT, split="test", classifier=DIGEST, geometry={}, layer=None, target="label",
                   labels=[[0], [1]], precision="fp32", seed=0)  # fmt: skip


def key_of(text):
    """Return the cell of "EXPLAINER METRIC", or of "NAME:OPTION=VALUE@VERSION METRIC" for a user's method.

    Default metric: saliency_miou.
    """
    explainer, _, metric = text.partition(" ")
    explainer, _, version = explainer.partition("@")
    metric = load_metric(metric or "saliency_miou")
    if not version:
        own = load_explainer(explainer)
        about = {"explainer": own.name, "explainer_options": json.loads(options.text(own.options)),
                 "explainer_text": str(own), "explainer_version": own.version, "baseline": own.baseline}  # fmt: skip
    else:
        name, chosen = options.parse(explainer)
        about = {"explainer": name, "explainer_options": chosen, "explainer_text": explainer,
                 "explainer_version": version, "baseline": False}  # fmt: skip
    identity = about["explainer"], json.dumps(about["explainer_options"], sort_keys=True), about["explainer_version"]
    return CellKey(
        cell_id=SETTING.cell_id(identity, metric.identity, metric.inputs), explainer_id=hash_of(identity),
        metric=metric.name, metric_options=json.loads(options.text(metric.options)), metric_text=str(metric),
        metric_version=metric.version, higher_is_better=metric.higher_is_better,
        range=bounds(metric.limits(TargetRange.of_classes(1, 0))), aggregate=metric.aggregate is not None, **about,
    )  # fmt: skip


def submission(scores, submitter="ada", ids=IDS, groups=None, **content):
    """Return a submission.

    scores: {text of `key_of`: (n,), or {part: (n,)} whose mean is the score}. content: entries of result.json.
    """
    groups = groups or [None] * len(ids)
    keys, outcomes = list(map(key_of, scores)), {}
    for key, values in zip(keys, scores.values(), strict=True):
        parts = {name: np.asarray(own, float) for name, own in values.items()} if isinstance(values, dict) else {}
        own = np.mean(list(parts.values()), axis=0) if parts else np.asarray(values, float)
        outcomes[key.cell_id] = Outcome(own, parts, Counter({"no mask": n} if (n := int(np.isnan(own).sum())) else {}),
                                        Counter())  # fmt: skip
    table = pa.Table.from_pylist([row for key in keys for row in _rows(key, outcomes[key.cell_id], ids, groups)],
                                 schema=records.SCHEMA)  # fmt: skip
    found, codes = Recorded(list(ids), list(groups), outcomes), cluster_codes(ids, groups)
    _, standings = compare(keys, found.values, codes, SETTING.seed)
    kept = {name: dict(one.parts) for name, one in outcomes.items()}
    numbers = dict(pair for own in by_metric(keys) for pair in numbers_of(own, outcomes, codes, SETTING.seed))
    for name, parts in kept.items():
        outcomes[name].parts.update(parts)
    cells = [
        result_of(key, outcomes[key.cell_id], numbers[key.cell_id], ForwardPasses(), standings[key.cell_id])
        for key in keys
    ]
    unknown = Interval(value=None, low=None, high=None, n=0, clusters=0).model_dump()
    about = {
        "license": "cc-by-4.0", "submitter": submitter, "target": "label", "setting": SETTING.model_dump(mode="json"),
        "dataset": {"id": "pets", "split": "test", "fingerprint": FINGERPRINT, "samples": len(IDS), "used": len(ids),
                    "classes": 2},
        "model": {"id": "folder:net", "revision": None, "digest": DIGEST, "geometry": "as it is", "accuracy": unknown},
        "cells": as_json(cells), "command": "saliency-bench run",
        "provenance": {"saliency_bench": "0", "python": "3", "libraries": {}, "device": "cpu"},
    } | content  # fmt: skip
    return Submission(Result.model_validate_json(json.dumps(about)), table, found, submitter)


def _rows(key, outcome, ids, groups):
    for place, image_id in enumerate(ids):
        row = {
            "cell_id": key.cell_id, "dataset": "pets", "split": "test", "model": f"folder:{DIGEST[:16]}",
            "explainer": key.explainer, "explainer_options": json.dumps(key.explainer_options, sort_keys=True),
            "metric": key.metric, "metric_options": json.dumps(key.metric_options, sort_keys=True),
            "image_id": image_id, "group": groups[place], "label": "a", "prediction": "b", "target": "a",
        }  # fmt: skip
        for part, values in {None: outcome.scores, **outcome.parts}.items():
            value = None if np.isnan(values[place]) else float(values[place])
            yield row | {"part": part, "value": value, "reason": "no mask" if value is None else None}


def write(root, scores, submitter="ada", **content):
    """Write a submission to `root` and return its folder."""
    return submission(scores, submitter, **content).write(root)[0].parent


def know(root, ids=IDS, groups=None):
    """Register the samples of the dataset on the board in `root`, as its owner would."""
    samples = list(zip(ids, groups or [None] * len(ids), strict=True))
    known = KnownDataset(id="saliency-bench/pets", split="test", fingerprint=FINGERPRINT, samples=samples)
    return write_known(root, known)


def vouch(root, folder, refused=None, by="explainer", suspicions=None):
    """Record on the board in `root` that its owner has recomputed a submission."""
    cells = json.loads((folder / "result.json").read_text())["cells"]
    one = Recomputed(samples=8, largest=0.0, by=by)
    return write_known(root, Status(
        content=content_of(folder), folder=folder.relative_to(root).as_posix(), refused=refused,
        suspicions=suspicions or {},
        cells={cell["cell_id"]: one for cell in cells}, saliency_bench="0", date="2026-11-22", device="cpu",
    ))  # fmt: skip
