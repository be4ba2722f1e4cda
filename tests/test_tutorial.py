"""docs/tutorial.md, word for word: its commands in a shell, one after the other, against the local Hub."""

import os
import re
import sys
from pathlib import Path

import pytest
from local_hub import LocalHub, User
from transformers import ResNetConfig, ResNetForImageClassification, ViTImageProcessor

TUTORIAL = Path(__file__).parents[1] / "docs" / "tutorial.md"
YOU = User("ada", "hf_AdAsSeCrEtToKeN0123456789abcdefgh")
OTHERS = User("others", "hf_OtHeRsSeCrEtToKeN0123456789abcdef", orgs=("microsoft",))


def blocks():
    return re.findall(r"^```(.+?)\n(.*?)^```", TUTORIAL.read_text(encoding="utf-8"), flags=re.M | re.S)


def test_there_are_ten_commands():
    commands = [text for kind, text in blocks() if kind.startswith("sh")]
    assert len(commands) == 10
    assert all(text.count("\n") == 1 for text in commands)
    assert [int(number) for number in re.findall(r"^\*\*(\d+)\.", TUTORIAL.read_text(), flags=re.M)] == [*range(1, 11)]


def small_resnet(folder):
    """What this Hub has under the name of the network that the tutorial starts from."""
    config = ResNetConfig(embedding_size=8, hidden_sizes=[8, 12], depths=[1, 1], layer_type="basic", num_labels=5)
    ResNetForImageClassification(config).save_pretrained(folder)
    ViTImageProcessor(size={"height": 64, "width": 64}).save_pretrained(folder)
    return folder


def hf_command(folder):
    """`hf`, for an environment that has its libraries elsewhere and so no command beside its Python."""
    folder.mkdir()
    (folder / "hf").write_text(f'#!/bin/sh\nexec {sys.executable} -m huggingface_hub.cli.hf "$@"\n')
    (folder / "hf").chmod(0o755)
    return folder


@pytest.mark.slow
def test_the_tutorial_does_what_it_says(tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)
    shown = {}
    with LocalHub(tmp_path, users=(YOU, OTHERS)) as hub:
        api = hub.api(OTHERS)
        api.create_repo("microsoft/resnet-18")
        api.upload_folder(repo_id="microsoft/resnet-18", folder_path=small_resnet(tmp_path / "pretrained"))
        path = {"PATH": f"{Path(sys.executable).parent}:{hf_command(tmp_path / 'bin')}:{os.environ['PATH']}"}
        for kind, text in blocks():
            if kind == "sh install":
                continue
            text = text.strip().replace("YOUR-NAME", YOU.name)
            # A person answers the question for the token, and it is in no environment afterwards.
            typed = f"{text} --token {YOU.token}" if text == "hf auth login" else text
            line = ["sh", "-c", typed] if kind == "sh" else [sys.executable, "-c", text]
            done = hub.run(line, user=None, timeout=600, **path)
            assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr}"
            assert YOU.token not in done.stdout + done.stderr
            shown[text.split("\n")[0]] = done.stdout
        run = next(text for command, text in shown.items() if command.startswith("saliency-bench run"))
        assert re.search(r" #\d", run), "there are enough samples to rank"
        assert "my-method" in shown["import saliency_bench as sb"]
        assert "['ada']" in shown["import saliency_bench as sb"]
        assert hub.repo("datasets", "ada/results").discussions[0].status == "merged"
    submitted = next(text for command, text in shown.items() if command.startswith("saliency-bench submit"))
    assert "create the public dataset ada/results" in submitted
    assert re.search(r"submitted: http://.*/datasets/ada/results/discussions/1", submitted)
    assert (tmp_path / "home" / "first" / "report.html").exists()
    written = [path for path in (tmp_path / "home").rglob("*") if path.is_file() and "hf/" not in str(path)]
    assert not [path for path in written if YOU.token.encode() in path.read_bytes()]  # but where `hf` keeps it
