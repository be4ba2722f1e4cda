"""Tests of `analyse --what randomisation`: verdicts on known explainers, and the criterion by hand."""

import json

import pytest
import torch
from refusals import refused
from torch import nn

import saliency_bench as sb
from saliency_bench.cli import main
from saliency_bench.read.analysis.randomisation import verdict
from saliency_bench.read.cell import PartResult


@pytest.fixture(scope="module")
def done(shapes, tmp_path_factory):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(3, 6, 5, 2), nn.ReLU(), nn.Conv2d(6, 8, 3, 2), nn.ReLU(), nn.Flatten(),
                           nn.LazyLinear(8))  # fmt: skip
    module(torch.rand(1, 3, 32, 32))
    model = sb.load_classifier(module, mean=0.5, std=0.25, device="cpu")
    return sb.run(dataset=str(shapes), model=model, split="train", explainers=["gradient", "edges"], target="predicted",
                  metrics=["saliency_randomisation", "saliency_randomisation:form=complexity"], limit=30,
                  out=tmp_path_factory.mktemp("randomised") / "run", device="cpu", progress=False)  # fmt: skip


def test_edges_depend_on_no_layer_and_the_gradient_on_all_together(done):
    data = sb.analyse(done, "randomisation").data
    found = {row["explainer"]: row for row in data["explainers"]}
    assert {name: row["verdict"] for name, row in found.items()} == {"gradient": "depends", "edges": "does not depend"}
    assert (found["edges"]["similarity"], found["edges"]["changes at"]) == (1, None)
    cells = {cell.explainer: cell for cell in done.cells if "complexity" not in cell.metric_text}
    assert len(data["layers"]) == 2 * 3
    for row in data["layers"]:
        part = cells[row["explainer"]].parts[row["down to"]]
        assert [row[name] for name in ("similarity", "low", "high", "n")] == [part.value, part.low, part.high, part.n]
        lies = part.low > 0.5, part.high < 0.5
        assert row["verdict"] == {(True, False): "does not depend", (False, True): "depends"}.get(lies, "undecided")
    order = [row["down to"] for row in data["layers"][:3]]
    assert order == list(cells["edges"].parts)
    assert found["gradient"]["changes at"] in order


@pytest.mark.parametrize(("ends", "bound", "word"), [
    ((0.6, 0.9), 0.5, "does not depend"), ((0.5, 0.9), 0.5, "undecided"), ((0.1, 0.5), 0.5, "undecided"),
    ((0.1, 0.4), 0.5, "depends"), ((0.6, 0.9), 0.7, "undecided"), ((None, None), 0.5, "too few samples"),
])  # fmt: skip
def test_the_criterion_by_hand(ends, bound, word):
    assert verdict(PartResult(value=0.5, low=ends[0], high=ends[1], n=30, clusters=30), bound) == word


def test_the_command_writes_json_tables_and_a_plot(done, tmp_path, capsys):
    assert main(["analyse", str(done.folder), "--what", "randomisation", "--bound", "0.9", "--out", str(tmp_path)]) == 0
    assert json.loads((tmp_path / "randomisation.json").read_text())["bound"] == 0.9
    assert {path.name for path in tmp_path.iterdir()} == {
        "randomisation.json", "randomisation.svg", *(f"randomisation{name}.{kind}" for name in ("", "-layers")
                                                      for kind in ("csv", "md", "tex"))}  # fmt: skip
    assert "above 0.9" in capsys.readouterr().out


def test_what_cannot_be_judged_is_one_line(done, shapes, tmp_path):
    refused("between -1 and 1; got 1", sb.analyse, done, "randomisation", bound=1.0)
    other = sb.run(dataset=str(shapes), model=sb.load_classifier(nn.Sequential(nn.Flatten(), nn.Linear(3072, 8)),
                   mean=0, std=1), split="train", explainers=["edges"], metrics=["saliency_miou"], limit=12,
                   target="predicted", out=tmp_path / "run", device="cpu", progress=False)  # fmt: skip
    refused("--metrics saliency_randomisation:layers=5", sb.analyse, other, "randomisation")
