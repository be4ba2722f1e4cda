"""The notebook runs from top to bottom in an empty folder."""

import re
from pathlib import Path

import nbformat
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).parents[1] / "notebooks" / "first_look.ipynb"


def test_the_notebook_runs_and_shows_what_it_says(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells), "commit it without outputs"
    NotebookClient(notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": tmp_path}}).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    pictures = [output for output in outputs if "image/png" in output.get("data", {})]
    printed = "".join(output.get("text", "") for output in outputs)
    assert len(pictures) == 4
    assert "brightness" in printed
    assert re.search(r" #\d", printed), "the text speaks of ranks"
    assert (tmp_path / "first-look" / "run" / "report.html").exists()
    # What the text claims: a map that looks at the network beats noise on the network's own score.
    rows = re.findall(r"^(\S+) +(\d\.\d+) \[", printed, flags=re.MULTILINE)  # explainer, first metric
    miou = {name: float(value) for name, value in rows}
    assert set(miou) == {"gradcam", "rise:masks=100", "brightness", "centre", "random"}
    assert miou["gradcam"] > miou["random"]
