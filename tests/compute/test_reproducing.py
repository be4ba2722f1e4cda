"""What a summary says reproduces it does: the same cells and the same bytes of records, in a fresh folder."""

import html
import json
import shlex
import shutil
import tempfile
from functools import partial
from pathlib import Path

import hypothesis
import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given
from transformers import ResNetForImageClassification

import saliency_bench as sb
from saliency_bench import cli, composing
from saliency_bench.board.submission import of_run
from saliency_bench.bound_explainer import load_explainer
from saliency_bench.bound_metric import load_metric
from saliency_bench.options import parse, spelled
from saliency_bench.read.analysis.comparison import compare_runs
from saliency_bench.read.report.report_page import report
from saliency_bench.read.run_folder import read_run


def brightness(classifier, images, target, *, power: float = 1.0):
    return images.mean(dim=1) ** power


class Shifted:
    def __init__(self, step):
        self.step = step

    def __call__(self, classifier, images, target):
        return images.mean(dim=1).roll(self.step, dims=2)


@pytest.fixture
def start(shapes, resnet, tmp_path, monkeypatch):
    """start(**settings) -> a start of the run in the folder "run" of `tmp_path`, with these explainers and metrics."""
    monkeypatch.chdir(tmp_path)
    usual = {"dataset": str(shapes), "model": str(resnet), "batch_size": 4, "limit": 8, "device": "cpu", "out": "run"}

    def call(explainers, metrics=("saliency_miou",), **settings):
        return sb.run(progress=False, **usual | settings | {"explainers": explainers, "metrics": list(metrics)})

    return call


def ids(summary):
    return {cell["cell_id"] for cell in summary["cells"]}


def repeated(command, folder, monkeypatch, **scope):
    """The summary that the lines of a command, or a Python call, come to in a fresh folder."""
    folder.mkdir()
    monkeypatch.chdir(folder)
    if command.startswith("saliency-bench "):
        for line in command.splitlines():
            program, *words = shlex.split(line)
            assert program == "saliency-bench"
            assert cli.main([*words, "--json"]) == 0
    else:
        exec(command, scope)
    return json.loads((folder / "run" / "summary.json").read_text())


HISTORIES = {
    "one start": [(["centre", "random"], ["saliency_miou"], {})],
    "fewer explainers": [(["centre", "random", "edges"], ["saliency_miou"], {}), (["random"], ["saliency_miou"], {})],
    "fewer metrics, other order": [
        (["centre", "random"], ["saliency_miou", "saliency_precision"], {}),
        (["random", "centre"], ["saliency_precision"], {}),
    ],
    "no full table": [
        (["centre", "random"], ["saliency_miou"], {}),
        (["edges", "random"], ["saliency_precision"], {}),
        (["edges"], ["saliency_iosr", "saliency_precision"], {}),
    ],
    "a wider limit": [
        (["centre"], ["saliency_miou"], {"limit": 4}),
        (["random"], ["saliency_miou"], {"limit": 12}),
    ],
    "a narrower limit": [
        (["centre"], ["saliency_miou"], {"limit": 12}),
        (["random"], ["saliency_miou"], {"limit": 8}),
    ],
    "a wider condition": [
        (["centre", "random"], ["saliency_miou"], {"only": ["label=ring"], "limit": 24}),
        (["random"], ["saliency_miou"], {"only": ["label=ring", "label=cross"], "limit": 24}),
    ],
    "options": [
        (["rise:masks=4,p=0.30", "occlusion:baseline=black,window=16,stride=16"],
         ["saliency_miou:threshold=0.25", "saliency_miou:threshold=mask_area"], {}),
        (["rise:masks=4"], ["saliency_miou"], {"seed": 0}),
    ],
}  # fmt: skip


@pytest.mark.sample(1)
@pytest.mark.parametrize("history", HISTORIES)
def test_the_command_gives_all_cells_of_the_summary_and_the_same_records(start, tmp_path, monkeypatch, history):
    for explainers, metrics, settings in HISTORIES[history]:
        done = start(explainers, metrics, **settings)
    again = repeated(done.summary["command"], tmp_path / "fresh", monkeypatch)
    assert ids(again) == ids(done.summary)
    records = [(folder / "run" / "records.parquet").read_bytes() for folder in (tmp_path, tmp_path / "fresh")]
    assert records[0] == records[1]


@pytest.mark.slow
def test_words_that_a_shell_would_read_otherwise_are_quoted(start, shapes, tmp_path, monkeypatch):
    rule = tmp_path / """it's "a" $HOME; -rule.csv"""
    lines = [f"{image_id},ring" for image_id in sb.load_dataset(str(shapes))["image_id"]]
    rule.write_text("\n".join(["image_id,target", *lines]))
    start(["centre"], target=str(rule))
    done = start(["random"], target=str(rule))
    assert ids(repeated(done.summary["command"], tmp_path / "fresh", monkeypatch)) == ids(done.summary)


@pytest.mark.slow
def test_one_command_is_enough_for_a_full_table(start):
    start(["centre", "random"], ["saliency_miou", "saliency_precision"])
    assert len(start(["random"]).summary["command"].splitlines()) == 1
    assert len(start(["edges"]).summary["command"].splitlines()) == 2
    assert len(start(["edges"], ["saliency_precision"]).summary["command"].splitlines()) == 1


@pytest.mark.slow
def test_the_commands_of_merged_runs_give_all_their_cells(start, tmp_path, monkeypatch):
    start(["centre", "random"], out="first")
    start(["centre"], out="first")
    start(["edges", brightness], out="second")
    runs = [read_run(tmp_path / name) for name in ("first", "second")]
    (merged,) = compare_runs(runs).merged
    (tmp_path / "fresh").mkdir()
    monkeypatch.chdir(tmp_path / "fresh")
    shell, python = merged.data.summary["command"].split("\n\n", 1)
    assert cli.main([*shlex.split(shell)[1:], "--json"]) == 0
    exec(python, {"brightness": brightness})
    again = compare_runs([read_run(Path(name)) for name in ("first", "second")]).merged[0].data
    assert again.cell_ids == merged.data.cell_ids


OPTION_VALUES = [1, 1.0, 0.1, 1e-7, 1e22, True, None, "text", "1", "1.5", "null", "true", "None", "False", "a,b", "a=b",
                 'a"b', "it's", " x", "", "[1", '"', "{", "ä €", "\\", [1, 2], ["a,b", "c"]]  # fmt: skip


@pytest.mark.parametrize("value", OPTION_VALUES, ids=repr)
def test_an_option_is_spelled_so_that_it_is_read_back(value):
    name, found = parse(f"rise:first={spelled(value)},second=2")
    assert name == "rise"
    assert found == {"first": value, "second": 2}
    assert type(found["first"]) is type(value)


def test_the_text_of_an_explainer_or_metric_names_it():
    for item, load in ((load_explainer("rise", masks=7, p=0.25), load_explainer),
                       (load_metric("saliency_miou", threshold="mask_area"), load_metric)):  # fmt: skip
        assert load(str(item)) == item


@pytest.mark.slow
def test_a_python_function_is_shown_as_a_call_that_says_what_it_was(start, tmp_path, monkeypatch):
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
    again = repeated(command, tmp_path / "fresh", monkeypatch, brightness=brightness)
    assert ids(again) == ids(done.summary)
    assert again["command"] == command
    assert command.splitlines()[-2].strip() in done.report.read_text().replace("&#39;", "'")


@pytest.mark.slow
def test_objects_that_no_name_means_get_one_of_their_own(start, tmp_path, monkeypatch):
    bound = partial(brightness, power=2.0)
    left, right = Shifted(1), Shifted(2)
    own = [brightness, bound, left, right, lambda classifier, images, target: images[:, 0],
           composing.smoothed("gradient", draws=2), composing.absolute(left), load_explainer("rise", masks=5),
    ]  # fmt: skip
    done = start(own, limit=4)
    command = done.summary["command"]
    names = ["brightness", "my_brightness", "my_shifted", "my_shifted_2", "my_lambda"]
    for name in names:
        assert f"# {name}: " in command
    assert "power=2.0" in command
    composed = "composing.smoothed('gradient', draws=2, sigma=0.15), composing.absolute(my_shifted), 'rise:masks=5'"
    assert composed in command
    scope = dict(zip(names, own, strict=False))
    again = repeated(command, tmp_path / "fresh", monkeypatch, **scope)
    assert ids(again) == ids(done.summary)


@pytest.mark.slow
def test_a_dataset_a_model_and_tables_are_shown_as_far_as_they_can_be_written_down(
    start, shapes, resnet, tmp_path, monkeypatch
):
    network = torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(3, 8))
    classes = [f"no {number}" for number in range(8)]
    model = sb.load_classifier(network, device="cpu", mean=0.25, std=(0.5, 0.5, 1), labels=classes)
    rows = sb.load_dataset(str(shapes))
    names = rows.features["label"].names
    label_map = {name: [classes[index % 8]] for index, name in enumerate(names)}
    done = start(["random"], ["saliency_miou"], dataset=rows, model=model, label_map=label_map,
                 groups={"a": ["no 1", "no 2"], "b": [3]}, only=["masked"])  # fmt: skip
    command = done.summary["command"]
    for part in ("dataset=dataset", "model=model", repr(label_map), "only=['masked']", "0.25", "Sequential",
                 done.summary["model"]["digest"], done.summary["dataset"]["fingerprint"]):  # fmt: skip
        assert part in command
    again = repeated(command, tmp_path / "fresh", monkeypatch, dataset=rows, model=model)
    assert ids(again) == ids(done.summary)


@pytest.mark.slow
def test_a_classifier_loaded_by_name_is_loaded_by_that_name(start, resnet, tmp_path, monkeypatch):
    done = start([brightness], model=sb.load_classifier(str(resnet), device="cpu", layer="resnet.encoder.stages.0"))
    assert "layer='resnet.encoder.stages.0'" in done.summary["command"]
    again = repeated(done.summary["command"], tmp_path / "fresh", monkeypatch, brightness=brightness)
    assert ids(again) == ids(done.summary)


@pytest.mark.slow
def test_what_is_submitted_names_no_folder_of_this_machine(start, shapes, resnet, tmp_path):
    settings = {"only": ["masked"], "target": str(tmp_path / "rule.csv")}
    test = sb.load_dataset(str(shapes))
    lines = [f"{image_id},ring" for image_id in test["image_id"]]
    (tmp_path / "rule.csv").write_text("\n".join(["image_id,target", *lines]))
    classifier = sb.load_classifier(str(resnet), device="cpu")
    for number, extra in enumerate(({}, {"model": classifier}, {"explainers": [brightness]})):
        given = {"explainers": ["random"]} | settings | extra | {"out": str(tmp_path / f"run-{number}")}
        done = start(**given)
        result = of_run(done.folder, "ada").result
        text = result.model_dump_json()
        assert str(tmp_path) not in text
        assert str(shapes.parent) not in text
        assert str(resnet.parent) not in text
        for part in ("random" if number < 2 else "brightness", "masked", "rule.csv", f"run-{number}", "shapes-xai"):
            assert part in result.command


def test_a_function_without_source_is_said_to_have_none(start):
    scope = {}
    exec("def typed(classifier, images, target):\n    return images[:, 0]", scope)
    (line,) = [line for line in start([scope["typed"]], limit=4).summary["command"].splitlines()
               if line.startswith("# typed")]  # fmt: skip
    assert "no source" in line


@pytest.mark.slow
def test_records_are_the_same_bytes_whatever_the_folders_are_called(start, shapes, resnet, tmp_path):
    """Also those of a dataset that no builder of ours has made, which goes by the name of its folder."""
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
    # People still see which folder it was, and records say which content.
    assert [run.summary["dataset"]["id"] for run in runs] == ["folder:foreign", "folder:copied"]
    assert [run.summary["model"]["id"] for run in runs] == [f"folder:{resnet.name}", "folder:net-b"]
    for kind, content in (("dataset", "fingerprint"), ("model", "digest")):
        assert set(runs[0].records()[kind]) == {f"folder:{runs[0].summary[kind][content][:16]}"}
    page = html.unescape(report([run.folder for run in runs], tmp_path / "both.html").read_text())
    for run in runs:  # which alone need the way to a folder
        page = page.replace(run.summary["command"], "")
    assert str(tmp_path) not in page
    assert read_run(runs[0].folder).cell_ids == read_run(runs[1].folder).cell_ids


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["dataset", "model"])
def test_other_content_has_another_name_in_records(start, shapes, resnet, tmp_path, kind):
    """Also in a folder of the same name."""
    own = tmp_path / "own" / (shapes if kind == "dataset" else resnet).name
    if kind == "dataset":
        own.mkdir(parents=True)
        sb.load_dataset(str(shapes)).select(range(1, 21)).to_parquet(own / "test.parquet")
    else:
        network = ResNetForImageClassification.from_pretrained(resnet)
        network.classifier[1].bias.data += 1
        network.save_pretrained(own)
        shutil.copy(resnet / "preprocessor_config.json", own)
    runs = [start(["centre"], **{kind: str(folder)}, out=f"run-{folder.parent.name}") for folder in
            (own, {"dataset": shapes, "model": resnet}[kind])]  # fmt: skip
    names = [set(run.records()[kind]) for run in runs]
    assert names[0].isdisjoint(names[1])


@pytest.fixture(scope="module")
def in_order(tmp_path_factory, shapes, resnet):
    folder = tmp_path_factory.mktemp("orders")
    return lambda explainers, metrics: (
        sb.run(dataset=str(shapes), model=str(resnet), explainers=explainers, metrics=metrics, limit=6, batch_size=4,
               out=tempfile.mkdtemp(dir=folder), device="cpu", progress=False).folder / "records.parquet"
    ).read_bytes()  # fmt: skip


EXPLAINERS = ["gradcam", "rise:masks=4", "random"]
METRICS = ["saliency_miou", "saliency_insertion", "saliency_kae", "saliency_pointing_game"]


@pytest.mark.slow
@hypothesis.settings(max_examples=4, deadline=None)
@given(explainers=st.permutations(EXPLAINERS), metrics=st.permutations(METRICS))
def test_the_order_of_explainers_and_metrics_changes_no_byte_of_the_records(in_order, explainers, metrics):
    assert in_order(explainers, metrics) == in_order(EXPLAINERS, METRICS)
