"""Tests of the output of `saliency-bench build`: omissions with reasons, and a next command that works."""

import os
import re
import sys
from pathlib import Path

import pytest
from commands import said
from local_hub import LocalHub
from PIL import Image
from test_documentation import OTHERS, small_resnet

from saliency_bench.hub_builders import _examples
from saliency_bench.push_scripts.build import remarks


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "options", "command"), [("pet-xai", "", "train"), ("voc-val", "--parts test", "run")])
def test_printed_next_command_works(tmp_path, monkeypatch, name, options, command):
    """Run the next command for a folder whose name has a space, with a small network under the printed name."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)
    source = _examples.write(name, tmp_path / "source", 20, 48)
    with LocalHub(tmp_path, users=(OTHERS,)) as hub:
        hub.api(OTHERS).create_repo("microsoft/resnet-18")
        hub.api(OTHERS).upload_folder(repo_id="microsoft/resnet-18", folder_path=small_resnet(tmp_path / "pretrained"))
        path = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
        line = f"saliency-bench build {name} --source {source} --out 'my data/{name}' {options}"
        built = hub.run(["sh", "-c", line], user=None, **path)
        assert built.returncode == 0, built.stderr
        line = re.search(r"^next:\n  (saliency-bench .*)\Z", built.stdout.strip(), re.M)[1]
        assert line.split()[1] == command
        done = hub.run(["sh", "-c", line], user=None, **path)
        assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"


def test_build_prints_why_a_mask_is_unusable(tmp_path, capsys):
    source = _examples.write("pet-xai", tmp_path / "source", 6, 48)
    trimap = next((source / "annotations/trimaps").iterdir())
    Image.new("L", (20, 30), 1).save(trimap)
    shown = said(capsys, ["build", "pet-xai", "--source", str(source), "--out", str(tmp_path / "out")])
    assert "1 mask: the trimap and the image differ in size" in shown


def test_option_accepts_several_values(tmp_path, capsys):
    source = _examples.write("voc-val", tmp_path / "source", 10, 32)
    line = ["build", "voc-val", "--source", str(source), "--out", str(tmp_path / "out"), "--classes", "image"]
    shown = said(capsys, [*line, "--drop", "aeroplane", "bicycle"])
    assert "it shows a class listed in `drop` (bicycle)" in shown
    assert "  samples   18\n" in shown
    assert "did you mean aeroplane" in said(capsys, [*line, "--overwrite", "--drop", "aeroplan"], 2)


def test_equal_remarks_are_merged_into_one_line():
    listed = [{"id": name, "text": "turned"} for name in "abc"] + [{"id": "d", "text": "odd"}]
    assert remarks(listed) == ["  remark    a and 2 more: turned", "  remark    d: odd"]
    assert remarks(listed, 1)[1] == "            and 1 more in build_report.json"
