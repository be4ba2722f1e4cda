"""Tests of `help NAME` and `list NAME`, which describe one explainer, metric or dataset."""

import json

import pytest
from commands import said

from saliency_bench import options, registry
from saliency_bench.push_scripts import _items


@pytest.mark.parametrize("kind", ["explainers", "metrics"])
def test_every_option_has_a_default_and_a_description(kind):
    for name in registry.names(kind):
        module = registry.load(kind, name, "score" if kind == "metrics" else "")
        shown = _items.about(kind, name)["options"]
        assert {key: one["default"] for key, one in shown.items()} == options.defaults(getattr(module, name)), name
        assert [key for key, one in shown.items() if not one["about"]] == [], name


RISE = ("rise: RISE (Petsiuk et al., 2018): ", "masks=4000", "Probability that a cell shows", "outputs",
        "4000, for one image of 224 x 224", "\nexample:\n  saliency-bench run ", "--explainers rise ")  # fmt: skip
SHOWN = {
    **dict.fromkeys(("help rise", "list explainers rise"), RISE),
    "help saliency_deletion": ("lower is better", "0 to 1 if a map explains one class", "Petsiuk", "steps=None",
                               "reference=black"),
    "help saliency_idr": ("columns (image_without_object)", "--other-model SCENES --other-label scene"),
    "help pet-xai": ("usage: saliency-bench build pet-xai", "--border", "cc-by-sa-4.0", "robots.ox.ac.uk"),
}  # fmt: skip


@pytest.mark.parametrize("line", SHOWN)
def test_help_describes_an_item(line, capsys):
    shown = said(capsys, line.split())
    assert [text for text in SHOWN[line] if text not in shown] == []
    assert "--other" not in said(capsys, ["help", "saliency_miou"])


def test_list_describes_items_as_json(capsys):
    found = json.loads(said(capsys, ["list", "rise", "saliency_miou", "pet-xai", "folder", "train", "--json"]))
    assert found["explainers"]["rise"]["options"]["masks"]["default"] == 4000
    assert found["metrics"]["saliency_miou"]["direction"] == "higher is better"
    assert found["datasets"]["pet-xai"]["options"]["border"]["default"] is False
    assert found["datasets"]["folder"]["licence"] == "set by --license"
    assert "saliency-bench train" in found["commands"]["train"]["help"]


def test_option_meanings_come_from_docstring_args():
    text = """Return scores (B,).

    on: this is prose.

    Args:
        size: of a grid.
        more: than one.
            It goes on: here.
        **others: ignored.

    Raises:
        UserError: size: none.
    """
    expected = {"size": "of a grid.", "more": "than one. It goes on: here.", "others": "ignored."}
    assert (options.meanings(text), options.meanings("Return scores.")) == (expected, {})
