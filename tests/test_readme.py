"""README.md, word for word: all its commands and all its Python, in one shell, in a clone, against the local Hub.

Shortened where a command has an option for it: the demo explains fewer samples, a training takes one epoch.
"""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from local_hub import LocalHub, User
from test_tutorial import hf_command, small_resnet

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
ME = User("ada", "hf_AdAsSeCrEtToKeN0123456789abcdefgh")
OTHERS = User("others", "hf_OtHeRsSeCrEtToKeN0123456789abcdef", orgs=("microsoft",))
SHORTER = {
    "saliency-bench demo": "saliency-bench demo --limit 48",
    "--out models/resnet-18-pet": "--out models/resnet-18-pet --epochs 1 --size 32",
}
STEP = "STEP "


def blocks() -> list[tuple[str, str]]:
    """(sh or python, text), but for the command that runs these tests."""
    found = re.findall(r"(<!-- test command -->\n)?^```(sh|python)\n(.*?)^```", README, flags=re.M | re.S)
    return [(language, text) for testing, language, text in found if not testing]


def script() -> str:
    """One shell, which stops at the first step that fails; each step's name goes to both outputs."""
    lines = ["set -e"]
    for number, (language, text) in enumerate(blocks()):
        lines.append(f"echo {STEP}{number}; echo {STEP}{number} >&2")
        for long, short in SHORTER.items():
            text = text.replace(long, short) if language == "sh" else text
        lines.append(text if language == "sh" else f"cat >> all.py <<'PYTHON'\n{text}PYTHON\npython all.py")
    return re.sub(r"\bME\b", ME.name, "\n".join(lines)) + "\n"


def test_every_command_of_the_text_is_in_a_block_that_is_run():
    assert len(blocks()) >= 10
    text = re.sub(r"^```.*?^```", "", README, flags=re.M | re.S)
    inline = re.findall(r"`(saliency-bench [^`]+)`", text)
    assert [command for command in inline if len(command.split()) > 2 and "COMMAND" not in command] == []
    for long in SHORTER:
        assert sum(long in text for _, text in blocks()) == 1


def test_an_installation_for_a_clone_is_editable():
    """Python looks into its own folder first, where a clone has the core alone."""
    for text in (README, (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")):
        installs = re.findall(r"pip install .*?-c constraints.txt (.*?)(?: &&|$)", text, flags=re.M)
        assert installs
        assert all(what.startswith("-e ") for what in installs)


def test_the_bare_core_of_a_clone_says_what_it_is():
    code = "import sys; sys.path.append(sys.argv[1]); import saliency_bench as sb; sb.load_explainer('gradcam')"
    libraries = sysconfig.get_path("purelib")
    done = subprocess.run([sys.executable, "-S", "-c", code, libraries], cwd=ROOT, capture_output=True, text=True)
    assert "pip install -e ." in done.stderr.splitlines()[-1]


@pytest.mark.slow
def test_the_readme_does_what_it_says(source, tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)
    clone = tmp_path / "home" / "clone"
    files = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    for name in files.stdout.splitlines():
        if (ROOT / name).is_file():
            (clone / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, clone / name)
    shutil.copytree(source, clone / "oxford-iiit-pet")
    with LocalHub(tmp_path, users=(ME, OTHERS)) as hub:
        api = hub.api(OTHERS)
        api.create_repo("microsoft/resnet-18")
        api.upload_folder(repo_id="microsoft/resnet-18", folder_path=small_resnet(tmp_path / "pretrained"))
        environment = hub.env(ME) | {
            # The libraries are there already: pip finds them satisfied and installs the package alone, offline.
            "PYTHONPATH": sysconfig.get_path("purelib"), "PIP_NO_INDEX": "1", "PIP_NO_BUILD_ISOLATION": "0",
            "PIP_DISABLE_PIP_VERSION_CHECK": "1", "OMP_NUM_THREADS": "1",
            "PATH": f"{hf_command(tmp_path / 'bin')}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        }  # fmt: skip
        done = subprocess.run(["sh", "-c", script()], cwd=clone, env=environment, capture_output=True, text=True)
        last = done.stdout.rpartition(STEP)[2] + done.stderr.rpartition(STEP)[2]
        assert done.returncode == 0, last
        assert ("models", "ada/resnet-18-pet") in hub.store.repos
        assert hub.repo("datasets", "ada/results").discussions[0].status == "open"
    assert "Traceback" not in done.stderr
    assert _demo_table(README)[0].split() == _demo_table(done.stdout)[0].split()  # of fewer samples, without ranks
    told, shown = ([row.split()[0] for row in _demo_table(text)[2:]] for text in (README, done.stdout))
    assert told[:3] == shown[:3]
    assert set(told) == set(shown)  # two baselines are nearly equal, and fewer samples may exchange them
    for written in ("saliency-bench-demo/run/report.html", "runs/first/report.html", "comparison.html", "gradcam.png"):
        assert (clone / written).is_file(), written
    page = (clone / "comparison.html").read_text(encoding="utf-8")
    assert "Saliency maps of" in page
    assert "brightness" in page


def _demo_table(text: str) -> list[str]:
    """The lines of the demo's table: header, rule, a row per explainer."""
    lines = text.splitlines()
    first = next(number for number, line in enumerate(lines) if re.match(r"explainer +saliency_miou", line))
    return [line.rstrip() for line in lines[first : first + 7]]
