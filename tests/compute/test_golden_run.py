"""Compare a small run with stored cell ids, structure and scores, so that any change to them is explicit.

`python tests/compute/test_golden_run.py` rewrites `golden_run.json`. If a score changes, increase the version of the
explainer or metric. Network and pictures are drawn from the package's random numbers, which are the same on every
machine.
"""

import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from torch import nn

import saliency_bench as sb

GOLDEN = Path(__file__).with_name("golden_run.json")
EXPLAINERS = ["gradient", "gradcam", "integrated_gradients:steps=8", "occlusion:window=8,stride=8", "rise:masks=20",
              "random"]  # fmt: skip
CLOSE = 1e-5  # relative tolerance for the last digits on another machine or with another version of torch
CLASSES = 8


def network(first: int = 0) -> nn.Module:
    """Return two convolutions and a linear layer with weights from the package's random numbers."""
    from saliency_bench.utils.seeds import uniform

    module = nn.Sequential(nn.Conv2d(3, 6, 3, 2, 1), nn.ReLU(), nn.Conv2d(6, 8, 3, 2, 1), nn.ReLU(),
                           nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, CLASSES))  # fmt: skip
    for number, parameter in enumerate(module.parameters(), first):
        drawn = uniform(number, parameter.numel()) - np.float32(0.5)
        parameter.data = torch.from_numpy(drawn).view(parameter.shape)
    return module


# FastDTW chooses between nearly equal paths, so other last digits on another machine change the distance by 1e-3. With
# a radius that covers all pixels, FastDTW equals DTW, which is continuous.
CHOSEN = {"saliency_consistency": ":radius=1024"}
# All metrics except the metrics that train networks for hours.
NEITHER = {"retrained", "first_right"}  # these need whole training runs or people
METRICS = [name + CHOSEN.get(name, "") for name in sb.list_metrics() if not NEITHER & {*sb.load_metric(name).inputs}]


def run(folder: Path) -> None:
    data = sb.build("shapes-xai", folder / "shapes", size=32, count=120, progress=False)
    model, other = (sb.load_classifier(network(first), mean=0, std=1) for first in (0, 100))
    sb.run(dataset=str(data), model=model, other_model=other, other_label="scene", explainers=EXPLAINERS,
           metrics=METRICS, out=folder / "run", limit=6, batch_size=4, seed=3, device="cpu",
           progress=False)  # fmt: skip


def found(folder: Path) -> dict:
    """Return ({cell id: description and scores by image}, structure of the files)."""
    table = pq.read_table(folder / "run" / "records.parquet")
    cells: dict[str, dict] = {}
    for row in table.to_pylist():
        about = {key: row[key] for key in ("explainer", "explainer_options", "metric", "metric_options")}
        cell = cells.setdefault(row["cell_id"], about | {"scores": {}})
        if row.get("part") is None:
            cell["scores"][row["image_id"]] = row["value"]
    predictions = pq.read_table(folder / "run" / "predictions.parquet")
    logits = {row["image_id"]: row["logits"] for row in predictions.to_pylist()}
    return {"columns": table.schema.names, "predictions": predictions.schema.names, "logits": logits, "cells": cells}


def test_columns_ids_and_scores_match_golden_file(tmp_path):
    pytest.importorskip("numba")  # parts of the consistency metric
    run(tmp_path)
    here, golden = found(tmp_path), json.loads(GOLDEN.read_text())

    def ids(cells):
        return {tuple(value for key, value in cell.items() if key != "scores"): name for name, cell in cells.items()}

    for name in ("columns", "predictions"):
        assert here[name] == golden[name]
    assert ids(here["cells"]) == ids(golden["cells"])
    assert here["logits"].keys() == golden["logits"].keys()
    for image_id, logits in golden["logits"].items():
        np.testing.assert_allclose(here["logits"][image_id], logits, rtol=CLOSE, atol=CLOSE)
    for cell_id, cell in golden["cells"].items():
        expected, scores = cell["scores"], here["cells"][cell_id]["scores"]
        about = cell["explainer"], cell["metric"]
        none, known = (
            [image for image in expected if (expected[image] is None) == missing] for missing in (True, False)
        )
        assert {image for image in scores if scores[image] is None} == set(none), about
        np.testing.assert_allclose(
            [scores[image] for image in known], [expected[image] for image in known], CLOSE, CLOSE, err_msg=str(about)
        )


if __name__ == "__main__":
    with TemporaryDirectory() as temporary:
        run(Path(temporary))
        GOLDEN.write_text(json.dumps(found(Path(temporary)), indent=1) + "\n")
        print(f"written: {GOLDEN}", file=sys.stderr)
