"""Test classifiers of objects and scenes, from training to scores, in one process, in two processes, and resumed."""

import json
import os
import subprocess
import sys

import pytest

from saliency_bench import load_classifier, registry
from saliency_bench.cli import main
from saliency_bench.utils.files import read_json

pytestmark = pytest.mark.slow
CONFIG = {"model_type": "resnet", "embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "layer_type": "basic"}
FILES = ("records.parquet", "predictions.parquet", "other_predictions.parquet")


@pytest.fixture(scope="module")
def trained(shapes, tmp_path_factory):
    place = tmp_path_factory.mktemp("trained")
    (place / "config.json").write_text(json.dumps(CONFIG))
    common = ["train", "--dataset", shapes, "--model", place / "config.json", "--size", 32, "--epochs", 12,
              "--batch-size", 16, "--learning-rate", "0.005", "--device", "cpu", "--quiet"]  # fmt: skip
    for name, words in (("objects", []), ("scenes", ["--label-column", "scene"])):
        assert main([str(word) for word in [*common, *words, "--out", place / name]]) in (0, None)
    return place / "objects", place / "scenes"


def command(shapes, trained, out, *words, processes=1):
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"] if processes > 1 else []
    objects, scenes = trained
    given = [
        sys.executable, *launch, "-m", "saliency_bench", "run", "--dataset", shapes, "--model", objects,
        "--other-model", scenes, "--other-label", "scene", "--explainers", "gradient", "random", "--metrics",
        "saliency_mcs", "saliency_mcs:filter=each", "saliency_mcr", "saliency_idr", "--batch-size", 4,
        "--device", "cpu", "--json", "--out", out, *words,
    ]  # fmt: skip
    threads = {"OMP_NUM_THREADS": "1"}
    done = subprocess.run([str(word) for word in given], capture_output=True, text=True, env=os.environ | threads)
    assert done.returncode == 0, done.stderr
    return {name: (out / name).read_bytes() for name in FILES}


@pytest.fixture(scope="module")
def alone(shapes, trained, tmp_path_factory):
    out = tmp_path_factory.mktemp("alone") / "run"
    return command(shapes, trained, out), read_json(out / "summary.json")


def test_both_are_trained_and_scored(alone, trained):
    _, summary = alone
    assert summary["other_model"]["label_column"] == "scene"
    for folder, model, kind in zip(trained, ("model", "other_model"), ("OBJECTS", "SCENES"), strict=True):
        assert load_classifier(folder).labels == list(getattr(registry.load("hub_builders", "shapes-xai"), kind))
        assert summary[model]["accuracy"]["value"] == read_json(folder / "training_log.json")["test_accuracy"]
    assert summary["faults"] == {}
    assert all(cell["n"] + sum(cell["left_out"].values()) == summary["dataset"]["used"] for cell in summary["cells"])
    assert all(cell["n"] > 0 for cell in summary["cells"] if "each" in cell["metric_text"])


@pytest.mark.thorough
def test_two_processes_and_a_resumed_run_end_with_the_same_bytes(alone, shapes, trained, tmp_path):
    expected, _ = alone
    assert command(shapes, trained, tmp_path / "two", processes=2) == expected
    out = tmp_path / "resumed"
    command(shapes, trained, out, "--limit", "9")
    for path in sorted((out / "other_predictions").iterdir())[:1]:
        path.unlink()
    next((out / "scores").iterdir()).unlink()
    assert command(shapes, trained, out, processes=2) == expected
