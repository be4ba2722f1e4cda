"""Test that explainers that do not support the network are left out and do not stop the others."""

import json
import re

import pytest
import timm
import torch
from refusals import refused

import saliency_bench as sb
from saliency_bench.cli import main
from saliency_bench.errors import UserError


@pytest.fixture(scope="module")
def transformer():
    torch.manual_seed(0)
    network = timm.create_model("vit_tiny_patch16_224", depth=2, img_size=32, patch_size=16, num_classes=8)
    return sb.load_classifier(network, mean=0.5, std=0.5, size=32)


@pytest.fixture
def run(shapes, transformer, tmp_path):
    def started(*explainers, out="run", **further):
        return sb.run(dataset=shapes, model=transformer, explainers=list(explainers), metrics=["saliency_miou"],
                      limit=4, out=tmp_path / out, progress=False, **further)  # fmt: skip

    return started


def test_weighted_explainer_rejects_contrast_targets(run, shapes, tmp_path):
    rows = sb.load_dataset(shapes)["image_id"]
    contrasts, plain = tmp_path / "contrasts.csv", tmp_path / "plain.csv"
    lines = [f"{row},0,{'' if number else 1}\n" for number, row in enumerate(rows)]  # one contrast is enough
    contrasts.write_text("image_id,target,against\n" + "".join(lines))
    plain.write_text("image_id,target\n" + "".join(f"{row},0\n" for row in rows))
    for target in ("contrast:second", contrasts):
        with pytest.raises(UserError, match="gradcam_vit:on=weighted always contrasts a class with all others"):
            run("gradcam_vit:on=weighted", "random", target=str(target))
    assert run("gradcam_vit", "random", target=str(contrasts)).cells
    assert run("gradcam_vit:on=weighted", target=str(plain), out="plain").cells


def test_unsuitable_explainer_is_left_out_and_reported(run, capsys, tmp_path):
    result = run("gradcam", "gae", "random")
    line = "gradcam is left out, because it does not support the network: no convolutional block found"
    assert line in capsys.readouterr().err
    assert [cell.explainer_text for cell in result.cells] == ["gae", "random"]
    assert result.summary["misfits"].keys() == {"gradcam"}
    with pytest.raises(
        UserError, match=r"^gradcam was left out of .*run, because it does not support the network: no convolut"
    ):
        sb.load_run(result.folder).check("gradcam:saliency_miou>=0.1")
    assert main(["submit", str(result.folder), "--to", str(tmp_path / "board"), "--by", "ada", "--dry-run"]) == 0
    assert "left out: gradcam (no convolutional block" in capsys.readouterr().out
    for text in ("\n".join(result.lines), result.report.read_text()):
        assert "left out: gradcam (no convolutional block" in text
    assert run("gradcam", "gae", "random").complete
    values = {cell.explainer_text: cell.value for cell in result.cells}
    again = run("gae", "random")
    assert again.complete
    assert {cell.explainer_text: cell.value for cell in again.cells} == values
    assert "misfits" not in json.loads((result.folder / "summary.json").read_text())


@pytest.mark.parametrize(
    ("explainers", "further"),
    [(("gradcam", "gae"), {"strict": True}), (("gradcam", "random"), {}), (("gradcam", "gradcam_plus_plus"), {})],
)
def test_unsuitable_explainer_stops_strict_or_empty_run(run, tmp_path, explainers, further):
    refused(r"^gradcam does not support the network: no convolutional block", run, *explainers, **further)
    assert not (tmp_path / "run").exists()


def test_suite_table_reports_unsuitable_explainer(shapes, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net_of_suite.py").write_text(
        "from torch import nn\n\ndef make():\n    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), "
        "nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 8))\n"
    )
    content = {
        "paper": "Own",
        "datasets": {"shapes": {"name": str(shapes)}},
        "models": {"mine": {"name": "./net_of_suite.py:make:mean=0,std=1,size=32", "family": "resnet"}},
        "runs": {"all": {"datasets": ["shapes"], "models": ["mine"], "explainers": ["gae", "gradient", "random"]}},
        "tables": {"main": {"title": "Mine", "runs": ["all"], "rows": ["explainer"], "columns": ["value"],
                            "values": {"mIoU": {"metric": "saliency_miou"}}}},
    }  # fmt: skip
    (tmp_path / "mine.yaml").write_text(json.dumps(content))
    assert main(["suite", "mine.yaml", "--out", "made", "--plan", "--limit", "4"]) == 0
    plan = capsys.readouterr().out
    assert "there" in plan
    assert "not on this machine" not in plan
    assert main(["suite", "mine.yaml", "--out", "made", "--limit", "4"]) == 0
    table = (tmp_path / "made/tables/main.md").read_text()
    assert "1 of 3 numbers are missing: the explainer does not support the network." in table
    assert main(["submit", "made", "--to", "board", "--by", "ada"]) == 0
    assert re.search(r"left out: gae \([^()]*attention[^()]*\)$", capsys.readouterr().out, re.MULTILINE)
    assert main(["review", "board"]) == 0


@pytest.mark.slow
def test_choose_reports_unsuitable_explainer(shapes, transformer, tmp_path):
    settings = {"dataset": shapes, "model": transformer, "metrics": ["saliency_miou"], "limit": 12,
                "within": "20s", "progress": False}  # fmt: skip
    choice = sb.choose(**settings, explainers=["gradcam", "gae"], out=tmp_path / "choice")
    assert list(choice.content["not_tried"]) == ["gradcam"]
    assert "no convolutional block found" in choice.content["not_tried"]["gradcam"]
    with pytest.raises(UserError, match="gradcam does not support the network: no convolutional block"):
        sb.choose(**settings, explainers=["gradcam"], out=tmp_path / "none")
