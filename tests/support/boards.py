"""Create a board with several datasets, metrics and submitters from random scores, without computing explanations."""

import numpy as np
import submissions
from submissions import SETTING, submission, write_known

from saliency_bench.board.known import KnownDataset

# {explainer: quality between 0 and 1}
METHODS = {
    "gradcam": 0.62, "integrated_gradients": 0.48, "smoothgrad": 0.5, "occlusion": 0.58, "rise": 0.6, "gradient": 0.33,
    "random": 0.3, "centre": 0.42, "edges": 0.31,
}  # fmt: skip
METRICS = ("saliency_miou", "saliency_pointing_game", "saliency_insertion", "saliency_deletion")
PASSES = {"gradcam": 2, "integrated_gradients": 100, "smoothgrad": 100, "occlusion": 784, "rise": 4000, "gradient": 2}
SCENES = [("saliency-bench/pet-xai", "a" * 64, "c" * 32), ("saliency-bench/object-xai", "b" * 64, "d" * 32)]


def setting_of(fingerprint, digest):
    return SETTING.model_copy(update={"fingerprint": fingerprint, "classifier": digest})


def scores_of(names, metrics, seed=0, count=60):
    """Return scores (n,) per explainer and metric.

    Lower is better for deletion; the pointing game has scores 0 and 1.
    """
    draw = np.random.default_rng(seed)
    hard = draw.normal(0, 0.1, count)
    found = {}
    for metric in metrics:
        for name in names:
            level = METHODS.get(name, 0.55)
            values = np.clip(level + hard + draw.normal(0, 0.12, count), 0, 1)
            values = 1 - values if metric == "saliency_deletion" else values
            own = (draw.random(count) < level).astype(float) if metric == "saliency_pointing_game" else values
            found[f"{name} {metric}"] = own
    return found


def put(root, monkeypatch, scene, scores, submitter="ada", model="resnet-18", ids=submissions.IDS, **content):
    """Write a submission for a dataset and model in SCENES and return its folder."""
    name, fingerprint, digest = scene
    with monkeypatch.context() as patch:
        patch.setattr(submissions, "SETTING", setting_of(fingerprint, digest))
        patch.setattr(submissions, "DIGEST", digest)
        patch.setattr(submissions, "_rows", _rows_of(name, fingerprint))
        about = {"id": name, "split": "test", "fingerprint": fingerprint, "samples": len(ids), "used": len(ids),
                 "classes": 2}  # fmt: skip
        network = {"id": f"folder:{model}", "revision": None, "digest": digest, "geometry": "as it is", "accuracy": {
            "value": 0.9, "low": 0.85, "high": 0.94, "n": len(ids), "clusters": len(ids)}}  # fmt: skip
        own = submission(scores, submitter, ids=ids, dataset=about, model=network, **content)
        cells = [cell.model_copy(update={"forward_passes": cell.forward_passes.model_copy(
            update={"explain": PASSES.get(cell.explainer, 0) * len(ids)})}) for cell in own.result.cells]  # fmt: skip
        seconds = {cell.explainer_id: 0.01 * len(ids) * PASSES.get(cell.explainer, 1) for cell in cells}
        own.__dict__["result"] = own.result.model_copy(update={"cells": cells, "seconds": seconds})
    return own.write(root)[0].parent


def _rows_of(name, fingerprint):
    plain = submissions._rows
    from saliency_bench.read.public_names import recorded_name

    def rows(*given):
        for row in plain(*given):
            yield row | {"dataset": recorded_name(name, fingerprint), "model": f"folder:{submissions.DIGEST[:16]}"}

    return rows


def know(root, scene, ids=submissions.IDS):
    """Register the samples of a dataset on a board, as its owner would."""
    known = KnownDataset(id=scene[0], split="test", fingerprint=scene[1], samples=[(one, None) for one in ids])
    return write_known(root, known)
