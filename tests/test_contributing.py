"""What the guide for contributors says of folders and versions is so."""

import re
from pathlib import Path

import yaml
from test_layers import LAYERS
from test_plugins import PLUGINS

ROOT = Path(__file__).parents[1]


def test_the_guide_names_each_folder_of_the_core_in_the_order_of_imports():
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)/` \|", text.partition("## Folders of the core")[2], flags=re.MULTILINE)
    core, plugins = rows[: -len(PLUGINS)], rows[-len(PLUGINS) :]
    assert set(core) == {path.parent.name for path in (ROOT / "saliency_bench").glob("*/__init__.py")}
    assert core == [name for names in LAYERS for name in names if name in core]
    assert sorted(plugins) == sorted(PLUGINS)
    named = set(re.findall(r"`(\w+)\.py`", text.partition("## Folders of the core")[2].partition("## Plugin")[0]))
    assert {path.stem for path in (ROOT / "saliency_bench").glob("*.py")} <= named


def test_the_files_that_the_guide_names_are_there():
    named = set(re.findall(r"`((?:\w+/)+\w+\.py)`", (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")))
    assert len(named) > 10
    assert [name for name in sorted(named) if "NAME" not in name and not (ROOT / name).is_file()] == []


def test_the_checks_before_a_commit_are_those_of_the_tests():
    pinned = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().split() if "==" in line)
    repos = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    revisions = {repo["repo"].rpartition("/")[2].removesuffix("-pre-commit"): repo["rev"] for repo in repos}
    assert revisions == {name: f"v{pinned[name]}" for name in ("ruff", "codespell")}
