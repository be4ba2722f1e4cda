"""Tests that notebooks run in an empty folder and are stored with their output."""

import base64
import re
import sys
from io import BytesIO
from pathlib import Path

import nbformat
import pytest
from PIL import Image

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
NAMES = sorted(path.name for path in NOTEBOOKS.glob("*.ipynb"))
sys.path.insert(0, str(NOTEBOOKS))

from store import executed, outputs  # noqa: E402


def pictures(notebook):
    data = [output.get("data", {}) for output in outputs(notebook)]
    found = [held.get("image/png", held.get("image/jpeg")) for held in data]
    return [Image.open(BytesIO(base64.b64decode(one))) for one in found if one]


def printed(notebook):
    texts = (output.get("text", "") + output.get("data", {}).get("text/plain", "") for output in outputs(notebook))
    return "\n".join(texts)


def scores(text, column=0):
    """Return {explainer: score in this column of the last printed table}."""
    interval = r"(-?\d\.\d+) \[[^]]+\][^\n]*?"
    rows = re.findall(rf"^(\S+) +{(interval + '  +') * column}{interval}$", text, flags=re.MULTILINE)
    return {name: float(values[column]) for name, *values in rows}


@pytest.mark.parametrize("name", NAMES)
def test_stored_notebook_shows_output_and_is_small(name):
    path = NOTEBOOKS / name
    notebook = nbformat.read(path, as_version=4)
    assert path.stat().st_size < 200_000
    assert all(cell.execution_count for cell in notebook.cells if cell.cell_type == "code")
    assert not [output for output in outputs(notebook) if output.output_type == "error"]
    assert len(pictures(notebook)) >= 2
    assert all(min(picture.size) >= 224 for picture in pictures(notebook))
    assert "<table>" in str(notebook)
    assert "/tmp" not in str(notebook)


@pytest.mark.thorough
def test_first_look_notebook_runs_as_described(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    notebook = executed(NOTEBOOKS / "first_look.ipynb", tmp_path)
    text = printed(notebook)
    assert len(pictures(notebook)) == 4
    assert re.search(r" #\d", text), "the text speaks of ranks"
    assert (tmp_path / "first-look" / "run" / "report.html").exists()
    # The text states that a map that uses the network beats noise.
    miou = scores(text)
    assert set(miou) == {"gradcam", "rise:masks=100", "brightness", "centre", "random"}
    assert miou["gradcam"] > miou["random"]


@pytest.mark.thorough
def test_your_data_notebook_runs_as_described(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    text = printed(executed(NOTEBOOKS / "your_data_your_model.ipynb", tmp_path))
    pointing, insertion = scores(text), scores(text, 2)
    assert {"contrast", "brightness", "gradcam"} < set(pointing)
    # The text states that a map that ignores the network is best by two of the three metrics.
    for found in (pointing, insertion):
        assert found["contrast"] == max(found.values())
    assert "maps={'brightness': my_brightness_maps}" in text
