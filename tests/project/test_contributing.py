"""Tests that the guide for contributors describes folders and versions correctly."""

import os
import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from test_layers import LAYERS
from test_plugins import PLUGINS

import saliency_bench

ROOT = Path(__file__).parents[2]


def test_guide_lists_core_folders_in_import_order():
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)/` \|", text.partition("## Folders of the core")[2], flags=re.MULTILINE)
    core, plugins = rows[: -len(PLUGINS)], rows[-len(PLUGINS) :]
    assert set(core) == {path.parent.name for path in (ROOT / "saliency_bench").glob("*/__init__.py")}
    assert core == [name for names in LAYERS for name in names if name in core]
    assert sorted(plugins) == sorted(PLUGINS)
    named = set(re.findall(r"`(\w+)\.py`", text.partition("## Folders of the core")[2].partition("## Plugin")[0]))
    assert {path.stem for path in (ROOT / "saliency_bench").glob("*.py")} <= named


def test_files_named_in_the_guide_exist():
    named = set(re.findall(r"`((?:\w+/)+\w+\.py)`", (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")))
    assert len(named) > 10
    assert [name for name in sorted(named) if "NAME" not in name and not (ROOT / name).is_file()] == []


def test_pre_commit_uses_the_pinned_versions():
    pinned = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().split() if "==" in line)
    repos = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    revisions = {repo["repo"].rpartition("/")[2].removesuffix("-pre-commit"): repo["rev"] for repo in repos}
    assert revisions == {name: f"v{pinned[name]}" for name in ("ruff", "codespell")}


@pytest.mark.parametrize(("tag", "code"), [(f"v{saliency_bench.__version__}", 0), ("v0.0", 1)])
def test_release_compares_its_tag_with_the_version(tag, code):
    content = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text(encoding="utf-8"))
    name = "Check that the tag matches the version"
    (step,) = (one["run"] for one in content["jobs"]["build"]["steps"] if one.get("name") == name)
    bare = f'python() {{ "{sys.executable}" -S "$@"; }}\n'  # without installed packages
    done = subprocess.run(["bash", "-c", bare + step], cwd=ROOT, env=os.environ | {"GITHUB_REF_NAME": tag}, check=False)
    assert done.returncode == code


def test_release_publishes_only_the_tested_build():
    jobs = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text(encoding="utf-8"))["jobs"]
    assert (jobs["try"]["needs"], jobs["publish"]["needs"]) == ("build", "try")
    assert jobs["publish"]["permissions"] == {"id-token": "write", "attestations": "write"}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    settings = [step["with"] for job in jobs.values() for step in job["steps"] if "with" in step]
    assert {one["python-version"] for one in settings if "python-version" in one} == {
        project["requires-python"].removeprefix(">=")
    }
    assert {one["name"] for one in settings if "name" in one} == {"dist", "sbom"}


def requirements_with(*extras):
    """Return the names of all dependencies except the GPU libraries, which torch pins."""
    waiting, needed = [("saliency-bench", frozenset(extras))], set()
    while waiting:
        if (item := waiting.pop()) in needed:
            continue
        needed.add(item)
        for text in metadata.requires(item[0]) or []:
            requirement = Requirement(text)
            extras = [{"extra": extra} for extra in item[1] or {""}]
            if requirement.marker is None or any(map(requirement.marker.evaluate, extras)):
                waiting.append((canonicalize_name(requirement.name), frozenset(requirement.extras)))
    return {name for name, _ in needed if not name.startswith(("nvidia-", "triton"))} - {"saliency-bench"}


def test_constraints_pin_all_requirements():
    def pins(lines):
        return {canonicalize_name(name): release for name, _, release in (line.partition("==") for line in lines)}

    pinned = pins((ROOT / "constraints.txt").read_text().splitlines()[1:])
    assert requirements_with("test") - pinned.keys() == set()
    hashed = [line.split(" --hash=sha256:") for line in (ROOT / "spaces/requirements.txt").read_text().splitlines()]
    assert all(re.fullmatch("[0-9a-f]{64}", digest) for _, digest in hashed)
    locked = pins(line for line, _ in hashed)
    assert locked.items() <= pinned.items()
    needed = requirements_with("studies", "lime", "onnx", "postgres", "segment") - locked.keys()
    assert {name for name in needed if not name.startswith("cuda-")} == {"torch", "torchvision"}


@pytest.mark.parametrize("path", sorted((ROOT / ".github" / "workflows").glob("*.yml")), ids=lambda path: path.name)
def test_workflows_pin_actions_and_may_only_read(path):
    text = path.read_text()
    uses = re.findall(r"uses: (.*)", text)
    assert uses
    assert all(re.fullmatch(r"[\w/-]+@[0-9a-f]{40} # v[\d.]+.*", line) for line in uses)
    assert yaml.safe_load(text)["permissions"] == {"contents": "read"}
