"""What a type checker says of a user's code, in a folder of its own: as an editor does after the README's command."""

import subprocess
import sys

import pytest

GOOD = """
from pathlib import Path

import numpy as np
import torch

import saliency_bench as sb


def bright(classifier: sb.Classifier, images: sb.Images, target: sb.Target) -> sb.Maps:
    return images.mean(1)


@sb.metric(higher_is_better=True, range=(0, 1))
def top_inside(maps: np.ndarray, masks: np.ndarray) -> sb.Scores:
    top = maps.reshape(len(maps), -1).argmax(axis=1)
    return masks.reshape(len(masks), -1)[range(len(maps)), top]


def main(out: Path) -> int:
    classifier: sb.Classifier = sb.load_classifier(torch.nn.Identity(), mean=0, std=1)
    explainer: sb.Explainer = sb.load_explainer("gradcam")
    metric: sb.Metric = sb.load_metric("saliency_miou")
    try:
        run = sb.run(dataset="shapes", model=classifier, explainers=[explainer, bright, "rise:masks=100"],
                     metrics=[metric, top_inside], out=out, limit=20)
    except sb.UserError:
        return 2
    table = sb.load_run(run.folder).to_pandas()
    print(run.to_markdown(), run.maps()["gradcam"]["image"].shape)
    return int(table["n"].sum())


settings: sb.RunSettings = {"dataset": "d", "model": "m", "explainers": ["gradcam"], "metrics": "m", "out": "o"}
sb.run(**settings)
"""
WRONG = {
    'sb.run(data_set="d", model="m", explainers="gradcam", metrics=["m"], out="o")': "data_set",
    'sb.run(dataset="d", model="m", explainers=["gradcam"], out="o")': '"metrics"',
    'sb.run(dataset="d", model="m", explainers=["gradcam"], metrics=["m"], out="o", limit="all")': '"limit"',
    'sb.run(dataset="d", model="m", explainers=["e"], metrics=["m"], out="o", precision="fp8")': '"precision"',
    'sb.template("d", "m", "o", explainers=["gradcam"])': '"explainers"',
    'sb.load_run("o").to_excel()': '"to_excel"',
    "sb.load_runs": '"load_runs"',
}  # fmt: skip


@pytest.mark.slow
def test_a_users_code_is_checked_against_the_package(tmp_path):
    pytest.importorskip("mypy")
    (tmp_path / "good.py").write_text(GOOD)
    (tmp_path / "wrong.py").write_text("\n".join(["import saliency_bench as sb", *WRONG]))
    command = [sys.executable, "-m", "mypy", "--no-error-summary", "--hide-error-context", "good.py", "wrong.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    lines = done.stdout.splitlines()
    assert [line for line in lines if line.startswith("good.py")] == [], done.stdout
    errors = [line for line in lines if ": error: " in line]
    assert [line.split(":")[1] for line in errors] == [str(number) for number, _ in enumerate(WRONG, 2)], done.stdout
    assert all(name in line for line, name in zip(errors, WRONG.values(), strict=True)), done.stdout
