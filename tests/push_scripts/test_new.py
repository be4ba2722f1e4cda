"""Tests of `saliency-bench new`: the contract reports each unfinished line, and invalid names are refused."""

import json
import subprocess
import sys

import contracts
import pytest
from commands import refusal, said

from saliency_bench import registry
from saliency_bench.cli import main
from saliency_bench.push_scripts import new

ITEMS = [("explainer", "my_method", ()), *(("metric", f"saliency_{asks}", ("--asks", asks)) for asks in new.SHELLS),
         ("dataset", "my-data", ()), ("command", "my-command", ())]  # fmt: skip


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    for part in new.PARTS:
        path = tmp_path / part
        path.mkdir(parents=True) if "." not in part else path.parent.mkdir()
    (tmp_path / "saliency_bench" / "registry.py").touch()
    for part in ("explainers", "metrics", "hub_builders", "push_scripts"):
        (tmp_path / "tests" / part).mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(("kind", "name", "more"), ITEMS)
def test_new_item_lacks_only_its_todos(kind, name, more, checkout, capsys, monkeypatch):
    files = json.loads(said(capsys, ["new", kind, name, *more, "--json"]))["files"]
    assert sorted(files) == sorted(str(path) for path in checkout.rglob("*.*") if path.stat().st_size)
    monkeypatch.setattr(registry, "folders", lambda kind: [checkout / kind])
    monkeypatch.setattr(contracts, "imported", lambda kind, name, part="": module_of(kind, name, part, checkout))
    plugin = new.FOLDERS[kind]
    assert contracts.names(plugin) == [name]
    sentences = list(contracts.CONTRACTS[plugin](name))
    assert sentences
    assert [sentence for sentence in sentences if "still contains a TODO" not in sentence] == []
    for path in files:
        text = contracts.Path(path).read_text()
        assert text.endswith("\n")
        assert not text.endswith("\n\n")


def module_of(kind, name, part, checkout):
    from importlib.util import module_from_spec, spec_from_file_location

    path = registry.files(kind)[name]
    spec = spec_from_file_location(f"new_{path.stem}", path.with_name(f"{part}.py") if part else path)
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_files_of_new_items_pass_the_linter(checkout):
    (checkout / "saliency_bench" / "registry.py").write_text('"""The marker of a checkout."""\n')
    for kind, name, more in ITEMS:
        assert main(["new", kind, name, *more]) == 0
    config = ["--config", str(contracts.Path(__file__).parents[2] / "pyproject.toml")]
    for command in (["check"], ["format", "--check"]):
        done = subprocess.run([sys.executable, "-m", "ruff", *command, *config, "--no-cache", "."],
                              cwd=checkout, capture_output=True, text=True)  # fmt: skip
        assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(("line", "words"), [
    ("explainer My_Method", ["My_Method", "explainer"]), ("explainer my-method", ["my-method", "underscores"]),
    ("explainer lambda", ["lambda"]), ("explainer _mine", ["_mine"]), ("explainer ../mine", ["../mine"]),
    ("metric energy", ["saliency_energy"]), ("dataset my--data", ["my--data", "dashes"]),
    ("command hello --asks maps", ["--asks", "command"]),
])  # fmt: skip
def test_invalid_names_are_rejected(line, words, checkout, capsys):
    before = sorted(checkout.rglob("*"))
    message = refusal(capsys, ["new", *line.split()])
    assert all(word in message for word in words)
    assert sorted(checkout.rglob("*")) == before


@pytest.mark.parametrize("there", ["explainers/mine.py", "explainers/mine/mine.py", "tests/explainers/test_mine.py"])
def test_existing_name_is_rejected(there, checkout, capsys):
    (checkout / there).parent.mkdir(exist_ok=True)
    (checkout / there).write_text("mine")
    assert "exists" in said(capsys, ["new", "explainer", "mine"], 2)
    assert [path for path in checkout.rglob("*mine.py") if path.is_file()] == [checkout / there]
    assert (checkout / there).read_text() == "mine"


def test_new_works_only_inside_a_checkout(checkout, capsys, monkeypatch):
    monkeypatch.chdir(checkout / "explainers")
    assert main(["new", "dataset", "my_data"]) == 0
    assert (checkout / "hub_builders" / "my_data.py").is_file()
    monkeypatch.chdir(checkout.parent)
    assert str(checkout.parent) in said(capsys, ["new", "dataset", "other"], 2)
