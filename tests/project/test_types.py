"""Tests of the type checker on a user's code in a separate folder, as an editor runs it."""

import json
import re
import subprocess
import sys
from pathlib import Path

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
    return len(table)


settings: sb.RunSettings = {"dataset": "d", "model": "m", "explainers": ["gradcam"], "metrics": "m", "out": "o"}
sb.run(**settings)
"""
WRONG = {'sb.run(data_set="d", model="m", explainers="gradcam", metrics=["m"], out="o")': "data_set",
         'sb.run(dataset="d", model="m", explainers=["gradcam"], out="o")': '"metrics"',
         'sb.run(dataset="d", model="m", explainers=["gradcam"], metrics=["m"], out="o", limit="all")': '"limit"',
         'sb.run(dataset="d", model="m", explainers=["e"], metrics=["m"], out="o", precision="fp8")': '"precision"',
         'sb.template("d", "m", "o", explainers=["gradcam"])': '"explainers"',
         'sb.load_run("o").to_excel()': '"to_excel"', "sb.load_runs": '"load_runs"'}  # fmt: skip


def with_mypy(folder):
    command = [sys.executable, "-m", "mypy", "--no-error-summary", "--hide-error-context", "good.py", "wrong.py"]
    shown = subprocess.run(command, cwd=folder, capture_output=True, text=True).stdout
    pattern = r"^(\w+)\.py:(\d+): error: (.*)"
    return [(name, int(line), text) for name, line, text in re.findall(pattern, shown, re.MULTILINE)]


def with_pyright(folder):
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, "good.py", "wrong.py"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    errors = json.loads(done.stdout[done.stdout.index("{") :])["generalDiagnostics"]
    return [(Path(e["file"]).stem, e["range"]["start"]["line"] + 1, e["message"]) for e in errors]


@pytest.mark.thorough
@pytest.mark.parametrize("checker", [with_mypy, with_pyright])
def test_type_checkers_accept_good_and_reject_wrong_code(checker, tmp_path):
    pytest.importorskip(checker.__name__.removeprefix("with_"))
    (tmp_path / "good.py").write_text(GOOD)
    (tmp_path / "wrong.py").write_text("\n".join(["import saliency_bench as sb", *WRONG]))
    errors = checker(tmp_path)
    assert {name for name, *_ in errors} == {"wrong"}, errors
    assert {line for _, line, _ in errors} == {number for number, _ in enumerate(WRONG, 2)}, errors
    for number, name in enumerate(WRONG.values(), 2):
        assert any(name in text for _, line, text in errors if line == number), errors
