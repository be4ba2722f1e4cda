"""Test build, train, run and report on real samples of Oxford-IIIT Pet, as described in the README."""

import json
from pathlib import Path

import pytest

from saliency_bench.cli import main

SOURCE = Path(__file__).parents[2].parent / "shared" / "data" / "oxford-iiit-pet"
TINY = {"model_type": "resnet", "embedding_size": 8, "hidden_sizes": [8, 12], "depths": [1, 1], "layer_type": "basic"}


@pytest.mark.slow
@pytest.mark.skipif(not SOURCE.is_dir(), reason="the real samples are not here; tests/hub_builders uses made ones")
def test_build_train_run_and_report_work_on_pets(tmp_path, capsys):
    data, model, run = (str(tmp_path / name) for name in ("pet", "model", "run"))
    (tmp_path / "config.json").write_text(json.dumps(TINY | {"architectures": ["ResNetForImageClassification"]}))
    assert main(["build", "pet-xai", "--source", str(SOURCE), "--out", data]) == 0
    settings = ["--dataset", data, "--device", "cpu"]
    config = str(tmp_path / "config.json")
    assert main(["train", *settings, "--model", config, "--out", model, "--epochs", "1", "--size", "64"]) == 0
    explainers = ["gradcam", "integrated_gradients:steps=5", "rise:masks=20", "centre", "random"]
    assert main(["run", *settings, "--model", model, "--explainers", *explainers, "--out", run]) == 0
    assert main(["report", run]) == 0
    assert capsys.readouterr().err.count("error") == 0
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    report = json.loads((tmp_path / "pet" / "build_report.json").read_text())
    assert len(summary["cells"]) == 15
    assert summary["dataset"]["used"] == report["splits"]["test"]["num_examples"]
    assert summary["masks"]["usable"] == report["splits"]["test"]["masks"]
    assert (tmp_path / "run" / "report.html").stat().st_size > 50_000
