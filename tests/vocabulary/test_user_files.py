"""Tests of functions in users' files instead of names, in commands, calls and suites."""

import re
import sys
from types import SimpleNamespace

import pytest
from commands import refusal
from refusals import refused

import saliency_bench as sb
from saliency_bench.board import checks
from saliency_bench.bound_explainer import as_explainer, registered_explainer
from saliency_bench.bound_metric import as_metric, registered_metric
from saliency_bench.cli import main
from saliency_bench.read.manifest import read_manifest
from saliency_bench.read.public_names import public_spec
from saliency_bench.read.statistics import ranking

MINE = '''
"""Mine."""
from beside_mine import level

def bright(classifier, images, target, *, sigma=1.0):
    """Brightness."""
    return images.mean(1) ** sigma + level()

def inside(maps, masks):
    """Whether the highest pixel lies inside."""
    top = maps.reshape(len(maps), -1).argmax(axis=1)
    return masks.reshape(len(masks), -1)[range(len(maps)), top]

inside.higher_is_better, inside.range = True, (0, 1)
alias = bright
number = 3
'''


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(MINE)
    (tmp_path / "beside_mine.py").write_text("def level():\n    return 0.5\n")
    monkeypatch.chdir(tmp_path)
    before, path = set(sys.modules), list(sys.path)
    yield tmp_path
    for name in {"mine", "beside_mine", "raises", "broken", "evil", "checked"} - before:
        sys.modules.pop(name, None)
    sys.path[:] = path


def test_command_with_files_matches_python_call(folder, shapes, resnet):
    words = ["--dataset", str(shapes), "--model", str(resnet), "--limit", "6", "--device", "cpu", "--out", "run"]
    explainers = ["centre", "./mine.py:bright", "mine.py:bright:sigma=2"]
    assert main(["run", *words, "--explainers", *explainers, "--metrics", "saliency_miou", "./mine.py:inside"]) == 0
    run = sb.load_run("run")
    mine = sys.modules["mine"]
    assert [str(as_explainer(text)) for text in explainers] == ["centre", "bright", "bright:sigma=2"]
    objects = ["centre", mine.bright, as_explainer(explainers[2])]
    again = sb.run(dataset=str(shapes), model=str(resnet), explainers=objects, metrics=["saliency_miou", mine.inside],
                   limit=6, device="cpu", out="run", progress=False)  # fmt: skip
    assert again.complete
    assert [cell.value for cell in again.cells] == [cell.value for cell in run.cells]
    assert {cell.explainer_about for cell in run.cells} == {"", "Brightness."}
    named = f"--explainers {' '.join(explainers)} --metrics saliency_miou ./mine.py:inside"
    assert named in run.summary["command"]


def test_change_in_imported_file_changes_version(folder):
    before = as_explainer("./mine.py:bright").version
    assert as_explainer(str(folder / "mine.py") + ":bright").version == before
    for name in ("mine", "beside_mine"):
        del sys.modules[name]
    (folder / "beside_mine.py").write_text("def level():\n    return 0.25\n")
    assert as_explainer("./mine.py:bright").version != before


@pytest.mark.parametrize(("text", "said"), [
    ("mine.py", r"mine.py is a file; name the function in it: mine.py:bright"),
    ("mine.py:brightt", r"unknown function 'brightt' of mine.py; did you mean bright\?"),
    ("mine.py:number", r"number of mine.py is not a function"),
    ("mine.py:bright:sigam=2", r"unknown option 'sigam' of bright; did you mean sigma\?"),
    ("mine.py:bright:2", r"'2' in 'bright:2' is not OPTION=VALUE"),
    ("none.py:bright", r"none.py cannot be read \(No such file or directory\)"),
    ("broken.py:f", r"broken.py cannot be imported: SyntaxError in broken.py, line 2: "),
    ("raises.py:f", r"raises.py cannot be imported: ZeroDivisionError"),
    ("./json.py:f", r"json.py has the same name as the module json, which is already imported; rename the file"),
    (".", "unknown"),
])  # fmt: skip
def test_faulty_file_or_function_gives_one_line_error(folder, text, said, shapes, resnet, capsys):
    (folder / "broken.py").write_text("# A comment.\ndef f(:")
    (folder / "raises.py").write_text("def f(): pass\n1 / 0")
    (folder / "json.py").write_text("def f(): pass")
    words = ["run", "--dataset", str(shapes), "--model", str(resnet), "--device", "cpu", "--out", "run"]
    for items in (["--explainers", text, "--metrics", "saliency_miou"], ["--explainers", "gradcam", "--metrics", text]):
        if "sigam" in text and items[-1] == text:
            continue  # not a metric
        assert re.search(said, refusal(capsys, [*words, *items]))
        assert not (folder / "run").exists()


def test_assigned_name_is_accepted_as_function(folder):
    assert as_explainer("mine.py:alias").name == "bright"
    assert as_metric("mine.py:inside").higher_is_better


CHECKED = """
import saliency_bench as sb

def check(*, sigma):
    if sigma < 0:
        raise ValueError("sigma must not be negative")

@sb.explainer(check=check)
def bright(classifier, images, target, *, sigma: float = 1.0):
    return images.mean(1) ** sigma

@sb.metric(check=check, higher_is_better=True, left_out=lambda options: ["masks"] if options["sigma"] == 2 else [])
def level(maps, masks=None, *, sigma: float = 1.0):
    return maps.mean(axis=(1, 2)) ** sigma
"""


def test_load_functions_accept_files_like_commands(folder):
    (folder / "checked.py").write_text(CHECKED)
    for load, name in ((sb.load_explainer, "bright"), (sb.load_metric, "level")):
        text = f"./checked.py:{name}"
        assert str(load(text)) == name
        assert str(load(text + ":sigma=3")) == str(load(text, sigma=3)) == f"{name}:sigma=3.0"
        assert load(text + ":sigma=3", sigma=4).options == (("sigma", 4.0),)
        refused(r"unknown option 'sigam'.*did you mean sigma", load, text, sigam=3)
        refused("sigma must not be negative", load, text, sigma=-1)
    assert sb.load_metric("./checked.py:level:sigma=2").inputs == ("maps",)
    assert sb.load_explainer("./mine.py:bright").version == sb.load_explainer(sys.modules["mine"].bright).version
    refused(r"name the function in it: mine\.py:bright", sb.load_explainer, "mine.py")


def test_recorded_names_import_no_file(folder):
    for load in (registered_explainer, registered_metric):
        refused("unknown", load, "mine.py")
        refused("is not OPTION=VALUE", load, "./mine.py:inside")
    cell = SimpleNamespace(metric="./mine.py:inside", metric_options={}, metric_version=1, cell_id="")
    assert checks.known_metric(cell) is None
    assert ranking.aggregate_of(cell) is None
    assert "mine" not in sys.modules


@pytest.mark.slow
def test_commands_on_foreign_run_import_no_file(folder, shapes, resnet, capsys):
    """Test a run folder of another user. Its run.json, summary and records contain the path of a file."""
    words = ["run", "--dataset", str(shapes), "--model", str(resnet), "--limit", "4", "--device", "cpu", "--out", "run"]
    words += ["--explainers", "gradcam", "--metrics", "saliency_miou", "saliency_insertion:steps=2"]
    assert main(words) == 0
    (folder / "evil.py").write_text("from pathlib import Path\nPath('executed').touch()\ndef f(*inputs): pass\n")
    path = folder / "run" / "run.json"
    for before, after in (('"gradcam"', '"./evil.py:f"'), ('"saliency_insertion:steps=2"', '"./evil.py:f"')):
        content = path.read_text()
        assert before in content
        path.write_text(content.replace(before, after))
        for command in (["draw", "run", "--what", "insertion", "--out", "a.png"], words,
                        ["report", "run", "--out", "a.html"], ["submit", "run", "--dry-run"]):  # fmt: skip
            main(command)
    capsys.readouterr()
    assert not (folder / "executed").exists()
    sb.load_dataset(str(shapes))[0]["image"].save("picture.png")
    explain = ["explain", "picture.png", "--model", str(resnet), "--out", "b.png"]
    assert main([*explain, "--explainers", "evil.py:f"]) != 0
    assert (folder / "executed").exists()  # executed because the user typed the command


def test_draw_and_explain_accept_files_and_hide_folders(folder, shapes, resnet):
    words = ["run", "--dataset", str(shapes), "--model", str(resnet), "--limit", "4", "--device", "cpu", "--out", "run"]
    text = f"{folder}/mine.py:bright:sigma=2"
    assert main([*words, "--explainers", text, "--metrics", "saliency_insertion:steps=2"]) == 0
    public = public_spec(read_manifest(folder / "run").spec, "d", "m").command()
    assert "--explainers mine.py:bright:sigma=2" in public
    assert str(folder) not in public
    draw = ["draw", "run", "--what", "insertion", "--out", "a.png"]
    assert (main(draw), main([*draw, "--explainers", "./mine.py:bright:sigma=2"])) == (2, 0)
    sb.load_dataset(str(shapes))[0]["image"].save("picture.png")
    explain = ["explain", "picture.png", "--model", str(resnet), "--out", "b.png"]
    assert main([*explain, "--explainers", "gradcam", "./mine.py:bright:sigma=2"]) == 0
    assert sb.explain("picture.png", str(resnet), "./mine.py:bright").explainer == "bright"


@pytest.mark.slow
def test_suites_accept_files(folder, tmp_path):
    from saliency_bench.recipes.suites.suite import suite

    (folder / "own.yaml").write_text("""
paper: Own
datasets: {one: {name: one}}
models: {small: {name: small, family: resnet, train: {epochs: 1}}}
runs: {all: {datasets: [one], models: [small], explainers: [gradient, "./mine.py:bright"]}}
tables:
  scores:
    title: Scores
    runs: [all]
    rows: [explainer]
    columns: [value]
    values: {inside: {metric: "./mine.py:inside"}}
smoke: {count: 60, limit: 4, drawings: 60, passes: 1}
""")
    done = suite("own.yaml", out=folder / "out", smoke=True, device="cpu", progress=False)
    (table,) = done.tables
    assert len(table.cells) == 2
    assert all(record["value"] is not None for record in table.cells.values())
