"""Test that the command in a summary reproduces the run in a new folder: cells and record bytes are the same."""

import html
import json
import shlex
import shutil
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
import torch

import saliency_bench as sb
from saliency_bench import cli, composing
from saliency_bench.board.submission import of_run
from saliency_bench.bound_explainer import load_explainer
from saliency_bench.bound_metric import load_metric
from saliency_bench.options import parse, spelled
from saliency_bench.read.analysis.comparison import compare_runs
from saliency_bench.read.finished_run import read_run
from saliency_bench.read.report.report_page import report


def brightness(classifier, images, target, *, power: float = 1.0):
    return images.mean(dim=1) ** power


@dataclass
class Shifted:
    step: int

    def __call__(self, classifier, images, target):
        return images.mean(dim=1).roll(self.step, dims=2)


@pytest.fixture
def start(shapes, resnet, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    usual = {"dataset": str(shapes), "model": str(resnet), "batch_size": 4, "limit": 8, "device": "cpu", "out": "run"}

    def call(explainers, metrics=("saliency_miou",), **settings):
        return sb.run(progress=False, **usual | settings | {"explainers": explainers, "metrics": list(metrics)})

    return call


@pytest.fixture
def check_repeated(tmp_path, monkeypatch):
    """Run the stored command or Python call of a run in a new folder, and check that cells and call are the same."""

    def check(done, **scope):
        folder, command = tmp_path / "fresh", done.summary["command"]
        folder.mkdir()
        monkeypatch.chdir(folder)
        if command.startswith("saliency-bench "):
            for line in command.splitlines():
                program, *words = shlex.split(line)
                assert program == "saliency-bench"
                assert cli.main([*words, "--json"]) == 0
        else:
            exec(command, scope)
        again = json.loads((folder / "run" / "summary.json").read_text())
        assert {cell["cell_id"] for cell in again["cells"]} == {cell["cell_id"] for cell in done.summary["cells"]}
        return again

    return check


@pytest.fixture
def rule(shapes, tmp_path):
    """Write a target file with one target per image, under a name that a shell must quote."""
    path = tmp_path / """it's "a" $HOME; -rule.csv"""
    lines = [f"{image_id},ring" for image_id in sb.load_dataset(str(shapes))["image_id"]]
    path.write_text("\n".join(["image_id,target", *lines]))
    return path


MIOU, PRECISION, IOSR = "saliency_miou", "saliency_precision", "saliency_iosr"
ONE, TWO = ["label=ring"], ["label=ring", "label=cross"]
HISTORIES = {
    "one start": [(["centre", "random"], [MIOU], {})],
    "fewer explainers": [(["centre", "random", "edges"], [MIOU], {}), (["random"], [MIOU], {})],
    "fewer metrics, other order": [(["centre", "random"], [MIOU, PRECISION], {}),
                                   (["random", "centre"], [PRECISION], {})],
    "no full table": [(["centre", "random"], [MIOU], {}), (["edges", "random"], [PRECISION], {}),
                      (["edges"], [IOSR, PRECISION], {})],
    "a wider limit": [(["centre"], [MIOU], {"limit": 4}), (["random"], [MIOU], {"limit": 12})],
    "a narrower limit": [(["centre"], [MIOU], {"limit": 12}), (["random"], [MIOU], {"limit": 8})],
    "a wider condition": [(["centre", "random"], [MIOU], {"only": ONE, "limit": 24}),
                          (["random"], [MIOU], {"only": TWO, "limit": 24})],
    "options": [(["rise:masks=4,p=0.30", "occlusion:baseline=black,window=16,stride=16"],
                 [f"{MIOU}:threshold=0.25", f"{MIOU}:threshold=mask_area"], {}),
                (["rise:masks=4"], [MIOU], {"seed": 0})],
}  # fmt: skip


@pytest.mark.sample(1, 3)
@pytest.mark.parametrize("history", HISTORIES)
def test_stored_command_reproduces_cells_and_records(start, check_repeated, tmp_path, history):
    for explainers, metrics, settings in HISTORIES[history]:
        done = start(explainers, metrics, **settings)
    check_repeated(done)
    records = [(folder / "run" / "records.parquet").read_bytes() for folder in (tmp_path, tmp_path / "fresh")]
    assert records[0] == records[1]


@pytest.mark.slow
def test_special_shell_characters_are_quoted(start, check_repeated, rule):
    start(["centre"], target=str(rule))
    check_repeated(start(["random"], target=str(rule)))


@pytest.mark.slow
def test_full_table_needs_a_single_command(start):
    start(["centre", "random"], ["saliency_miou", "saliency_precision"])
    assert len(start(["random"]).summary["command"].splitlines()) == 1
    assert len(start(["edges"]).summary["command"].splitlines()) == 2
    assert len(start(["edges"], ["saliency_precision"]).summary["command"].splitlines()) == 1


@pytest.mark.slow
def test_commands_of_merged_runs_reproduce_all_cells(start, tmp_path, monkeypatch):
    start(["centre", "random"], out="first")
    start(["centre"], out="first")
    start(["edges", brightness], out="second")
    runs = [read_run(tmp_path / name) for name in ("first", "second")]
    (merged,) = compare_runs(runs).merged
    (tmp_path / "fresh").mkdir()
    monkeypatch.chdir(tmp_path / "fresh")
    shell, python = merged.summary["command"].split("\n\n", 1)
    assert cli.main([*shlex.split(shell)[1:], "--json"]) == 0
    exec(python, {"brightness": brightness})
    again = compare_runs([read_run(Path(name)) for name in ("first", "second")]).merged[0]
    assert again.origins.keys() == merged.origins.keys()


OPTION_VALUES = [1, 1.0, 0.1, 1e-7, 1e22, True, None, "text", "1", "1.5", "null", "true", "None", "False", "a,b", "a=b",
                 'a"b', "it's", " x", "", "[1", '"', "{", "ä €", "\\", [1, 2], ["a,b", "c"]]  # fmt: skip


@pytest.mark.parametrize("value", OPTION_VALUES, ids=repr)
def test_spelled_options_parse_back(value):
    name, found = parse(f"rise:first={spelled(value)},second=2")
    assert (name, found) == ("rise", {"first": value, "second": 2})
    assert type(found["first"]) is type(value)


def test_text_of_explainer_or_metric_loads_it():
    for item, load in ((load_explainer("rise", masks=7, p=0.25), load_explainer),
                       (load_metric("saliency_miou", threshold="mask_area"), load_metric)):  # fmt: skip
        assert load(str(item)) == item


@pytest.mark.slow
def test_run_with_function_stores_python_call(start, check_repeated):
    start([brightness, "random"], target="predicted")
    done = start(["centre"], ["saliency_precision"], target="predicted")
    command = done.summary["command"]
    assert "sb.run(" in command
    assert "brightness, 'random'" in command
    version = next(cell["explainer_version"] for cell in done.summary["cells"] if cell["explainer"] == "brightness")
    (line,) = [line for line in command.splitlines() if line.startswith("# brightness")]
    assert Path(__file__).name in line
    assert version in line
    assert str(Path(__file__).parent) not in command
    assert check_repeated(done, brightness=brightness)["command"] == command
    assert command.splitlines()[-2].strip() in done.report.read_text().replace("&#39;", "'")


@pytest.mark.slow
def test_unnamed_objects_get_unique_names_in_call(start, check_repeated, resnet):
    bound = partial(brightness, power=2.0)
    left, right = Shifted(1), Shifted(2)
    own = [brightness, bound, left, right, lambda classifier, images, target: images[:, 0],
           composing.smoothed("gradient", draws=2), composing.absolute(left), load_explainer("rise", masks=5),
    ]  # fmt: skip
    model = sb.load_classifier(str(resnet), device="cpu", layer="resnet.encoder.stages.0")
    done = start(own, limit=4, model=model)
    command = done.summary["command"]
    names = ["brightness", "my_brightness", "my_shifted", "my_shifted_2", "my_lambda"]
    for name in names:
        assert f"# {name}: " in command
    assert "power=2.0" in command
    assert "layer='resnet.encoder.stages.0'" in command  # the classifier is loaded again by its name
    composed = "composing.smoothed('gradient', draws=2, sigma=0.15), composing.absolute(my_shifted), 'rise:masks=5'"
    assert composed in command
    check_repeated(done, **dict(zip(names, own, strict=False)))


@pytest.mark.slow
def test_call_describes_dataset_model_and_tables(start, check_repeated, shapes):
    network = torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(3, 8))
    classes = [f"no {number}" for number in range(8)]
    model = sb.load_classifier(network, device="cpu", mean=0.25, std=(0.5, 0.5, 1), labels=classes)
    rows = sb.load_dataset(str(shapes))
    label_map = {name: [classes[index % 8]] for index, name in enumerate(rows.features["label"].names)}
    done = start(["random"], ["saliency_miou"], dataset=rows, model=model, label_map=label_map,
                 groups={"a": ["no 1", "no 2"], "b": [3]}, only=["masked"])  # fmt: skip
    for part in ("dataset=dataset", "model=model", repr(label_map), "only=['masked']", "0.25", "Sequential",
                 done.summary["model"]["digest"], done.summary["dataset"]["fingerprint"]):  # fmt: skip
        assert part in done.summary["command"]
    check_repeated(done, dataset=rows, model=model)


@pytest.mark.slow
def test_submission_contains_no_local_folders(start, rule, shapes, resnet, tmp_path):
    extras = ({}, {"model": sb.load_classifier(str(resnet), device="cpu")}, {"explainers": [brightness]})
    for number, extra in enumerate(extras):
        settings = {"explainers": ["random"], "only": ["masked"], "target": str(rule)} | extra
        result = of_run(start(**settings, out=str(tmp_path / f"run-{number}")).folder, "ada").result
        for folder in (tmp_path, shapes.parent, resnet.parent):
            assert str(folder) not in result.model_dump_json()
        for part in ("random" if number < 2 else "brightness", "masked", "rule.csv", f"run-{number}", "shapes-xai"):
            assert part in result.command


def test_function_without_source_is_noted_in_call(start):
    scope = {}
    exec("def typed(classifier, images, target):\n    return images[:, 0]", scope)
    (line,) = [line for line in start([scope["typed"]], limit=4).summary["command"].splitlines()
               if line.startswith("# typed")]  # fmt: skip
    assert "no source" in line


@pytest.mark.slow
def test_records_do_not_depend_on_folder_names(start, shapes, resnet, tmp_path):
    """Include a dataset from a different builder, named after its folder."""
    (tmp_path / "foreign").mkdir()
    sb.load_dataset(str(shapes)).to_parquet(tmp_path / "foreign" / "test.parquet")
    shutil.copytree(tmp_path / "foreign", tmp_path / "other place" / "copied")
    shutil.copytree(resnet, tmp_path / "net-b")
    named = [
        (tmp_path / "foreign", resnet, "first"),
        (tmp_path / "other place" / "copied", tmp_path / "net-b", "second"),
    ]
    runs = [start(["centre", "gradcam"], dataset=str(data), model=str(net), out=out) for data, net, out in named]
    for name in ("records.parquet", "predictions.parquet"):
        assert (runs[0].folder / name).read_bytes() == (runs[1].folder / name).read_bytes()
    # The summary still shows the folder, and records identify the content.
    assert [run.summary["dataset"]["id"] for run in runs] == ["folder:foreign", "folder:copied"]
    assert [run.summary["model"]["id"] for run in runs] == [f"folder:{resnet.name}", "folder:net-b"]
    for kind, content in (("dataset", "fingerprint"), ("model", "digest")):
        assert set(runs[0].records()[kind]) == {f"folder:{runs[0].summary[kind][content][:16]}"}
    page = html.unescape(report([run.folder for run in runs], tmp_path / "both.html").read_text())
    for run in runs:  # only these need the path of a folder
        page = page.replace(run.summary["command"], "")
    assert str(tmp_path) not in page
    assert read_run(runs[0].folder).origins.keys() == read_run(runs[1].folder).origins.keys()
