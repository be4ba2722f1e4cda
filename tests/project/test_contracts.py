"""Tests of the contracts of items: each missing part is reported once with its place, and other items still work."""

import shutil
from dataclasses import fields, replace
from pathlib import Path

import contracts
import pytest

import saliency_bench as sb
from saliency_bench import registry

LACKS = [*(("explainers", "gradient", what) for what in ("gradient", "__doc__")),
         *(("hub_builders", "food-101", what) for what in ("VERSION", "features", "samples", "example")),
         *(("push_scripts", "list", what) for what in ("arguments", "main"))]  # fmt: skip


@pytest.mark.parametrize(("kind", "name", "what"), LACKS)
def test_missing_module_part_is_named_with_its_file(kind, name, what, monkeypatch):
    module = registry.load(kind, name)
    assert list(contracts.CONTRACTS[kind](name)) == []
    if what == "__doc__":
        monkeypatch.setattr(module, what, None)
    else:
        monkeypatch.delattr(module, what)
    (sentence,) = contracts.CONTRACTS[kind](name)
    assert Path(module.__file__).name in sentence
    assert what.replace("__doc__", "docstring") in sentence


@pytest.mark.parametrize(("kind", "name", "what"), [
    *(("explainers", "gradient", what) for what in contracts.EXPLAINER),
    *(("metrics", "saliency_miou", what) for what in contracts.METRIC),
])  # fmt: skip
def test_missing_declaration_is_named(kind, name, what, monkeypatch):
    function = getattr(registry.load(kind, name, "score" if kind == "metrics" else ""), name)
    usual = {field.name: field.default for field in fields(function.declaration)}
    monkeypatch.setattr(function, "declaration", replace(function.declaration, **{what: usual[what]}))
    (sentence,) = contracts.CONTRACTS[kind](name)
    assert Path(registry.score_file(kind, name)).name in sentence
    assert f"has no {what}" in sentence


def test_incomplete_options_are_named(monkeypatch):
    def gradient(classifier, images, target, *, strength=1, scale: str = "log"):
        """Return maps.

        Args:
            strength: of the maps.
        """

    gradient.declaration = sb.load_explainer("gradient").declaration
    monkeypatch.setattr(registry.load("explainers", "gradient"), "gradient", gradient)
    without, any_text, not_described = contracts.of_explainer("gradient")
    assert "option strength of gradient" in without
    assert "option scale of gradient" in any_text
    assert "Literal" in any_text
    assert "option scale of gradient" in not_described
    assert "under Args" in not_described


@pytest.fixture
def metrics(tmp_path, monkeypatch):
    shutil.copytree(registry.folders("metrics")[0] / "saliency_miou", tmp_path / "saliency_miou")
    monkeypatch.setattr(registry, "folders", lambda kind: [tmp_path])
    return tmp_path


@pytest.mark.parametrize("file", ["score.py", "saliency_miou.py", "README.md", "requirements.txt"])
def test_missing_metric_file_is_named(file, metrics):
    assert (contracts.names("metrics"), list(contracts.of_metric("saliency_miou"))) == (["saliency_miou"], [])
    (metrics / "saliency_miou" / file).unlink()
    assert contracts.names("metrics") == ["saliency_miou"]
    (sentence,) = contracts.of_metric("saliency_miou")
    assert f"saliency_miou has no {file}" in sentence


@pytest.mark.parametrize(("file", "old", "new", "words"), [
    ("README.md", "emoji", "smiley", "emoji"),
    ("README.md", "## Limitations", "## Limits", "Limitations"),
    ("README.md", "---", "===", "YAML"),
    ("README.md", "title: ", "title: a: ", "YAML"),
    ("README.md", "IoU =", "TODO: ", "line"),
    ("saliency_miou.py", '    """Wrapper', "    about = 'Mean'  # ", "docstring"),
])  # fmt: skip
def test_invalid_metric_file_is_described(file, old, new, words, metrics):
    path = metrics / "saliency_miou" / file
    path.write_text(path.read_text().replace(old, new, 1))
    (sentence,) = contracts.of_metric("saliency_miou")
    assert file in sentence
    assert words in sentence


def test_module_that_cannot_be_imported_is_named(monkeypatch):
    def broken(kind, name, part=""):
        raise ImportError("no such thing")

    monkeypatch.setattr(registry, "load", broken)
    (sentence,) = contracts.of_explainer("gradient")
    assert "explainers/gradient.py" in sentence
    assert "no such thing" in sentence
