"""Tests of plugins that other packages add by entry points: an installed package, and broken packages."""

import ast
import importlib
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from commands import refusal, said
from refusals import refused

import saliency_bench as sb
from saliency_bench import registry
from saliency_bench.cli import main
from saliency_bench.errors import UserError
from saliency_bench.maps import read_pair
from saliency_bench.publishing.metrics import metric_publication
from saliency_bench.publishing.vendoring import has_module, metric_files
from saliency_bench.recipes.suites.suite_schema import find_suite

EXAMPLE = Path(__file__).parents[2] / "examples" / "plugin"
OWNER = re.compile("1 of saliency-example 1[.]0[.]0, code [0-9a-f]{16}")


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    if not EXAMPLE.is_dir():
        pytest.skip("needs the checkout")
    folder, copy = tmp_path_factory.mktemp("site"), tmp_path_factory.mktemp("source") / "plugin"
    for path in EXAMPLE.rglob("*"):
        if path.is_file() and "egg-info" not in str(path) and "build" not in path.parts:
            place = copy / path.relative_to(EXAMPLE)
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(path.read_bytes())
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation", "--target",
               folder, copy]  # fmt: skip
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture
def found_anew():
    """Return a function that searches for installed packages again."""

    def forget():
        importlib.invalidate_caches()
        for name in ("_all_points", "_points", "_places", "_read_added", "_code_of"):
            getattr(registry, name).cache_clear()

    yield forget
    for name in [name for name in sys.modules if name.partition(".")[0] in ("saliency_example", "broken")]:
        del sys.modules[name]
    forget()


@pytest.fixture
def added(tmp_path, found_anew, monkeypatch):
    """Return added(kind, name, module, text), which installs a package with one entry point for one test."""

    def install(*described):
        package(tmp_path, *described)
        monkeypatch.syspath_prepend(tmp_path)
        found_anew()

    yield install
    monkeypatch.undo()


@pytest.fixture
def example(installed, found_anew, monkeypatch):
    monkeypatch.syspath_prepend(installed)
    found_anew()
    yield
    monkeypatch.undo()


def test_plugin_items_are_loaded_by_name(example, capsys):
    assert "local_contrast" in sb.list_explainers()
    assert "top_quarter" in sb.list_metrics()
    assert "stripes-xai" in sb.list_datasets()
    assert {"example", "example-main"} <= set(sb.list_suites())
    versions = sb.load_explainer("local_contrast:side=5").version, sb.load_metric("top_quarter").version
    assert all(map(OWNER.fullmatch, versions))
    assert len(set(versions)) == 2
    assert sb.load_explainer("gradcam").version == registry.load("explainers", "gradcam").gradcam.declaration.version
    assert main(["list"]) == 0
    shown = capsys.readouterr()
    assert "  local_contrast        Measure how much each pixel differs" in shown.out
    assert shown.out.count("(saliency-example 1.0.0)") == 3  # an explainer, a metric and a dataset
    assert shown.err == ""
    refused("side of local_contrast must be odd", sb.load_explainer, "local_contrast:side=4")
    refused("did you mean top_quarter", sb.load_metric, "top_quarters")


def test_plugin_metric_is_published_with_its_card(example, monkeypatch, tmp_path):
    files = metric_publication("top_quarter", "ada").files
    assert {"README.md", "app.py", "requirements.txt", "score.py", "top_quarter.py"} <= files.keys()
    assert b"## Citation" not in files["README.md"]  # it names no paper
    script = ast.parse(files["app.py"].decode()).body
    named = [
        line for line in script if isinstance(line, ast.Assign) and ast.unparse(line.targets[0]) in ("MODULE", "NAME")
    ]
    for name, content in files.items():
        (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.read_bytes())
    scope = {"HERE": tmp_path, "re": re}
    exec(compile(ast.Module(named, []), "app.py", "exec"), scope)
    assert scope["NAME"] == "top_quarter"
    card = registry.files("metrics")["top_quarter"].parent / "README.md"
    missing = Path.is_file
    monkeypatch.setattr(Path, "is_file", lambda path: path != card and missing(path))
    with pytest.raises(
        UserError, match=r"metric top_quarter has no README.md; add what is missing to .*/top_quarter, as"
    ):
        metric_publication("top_quarter", "ada")
    with pytest.raises(UserError, match=r"my_score.py:my_iou is a function in a file.*saliency-bench new metric"):
        metric_publication("./my_score.py:my_iou", "ada")


def test_plugin_items_state_their_package(example, capsys):
    names = {"explainers": "local_contrast", "metrics": "top_quarter", "datasets": "stripes-xai"}
    for kind, name in names.items():
        shown = said(capsys, ["help", name])
        assert re.search(r"^ *package:? +saliency-example 1\.0\.0$", shown, re.MULTILINE)
        assert not re.search(r"^ *paper *$", shown, re.MULTILINE)
        listed = json.loads(said(capsys, ["list", kind, "--json"]))
        assert listed[kind][name].endswith(" (saliency-example 1.0.0)")
    items = json.loads(said(capsys, ["list", *names.values(), "gradcam", "--json"]))
    assert {items[kind][name]["package"] for kind, name in names.items()} == {"saliency-example 1.0.0"}
    assert "package" not in items["explainers"]["gradcam"]


def test_run_scores_plugin_items_and_names_their_package(example, resnet, shapes, tmp_path):
    run = sb.run(dataset=str(shapes), model=str(resnet), explainers=["local_contrast", "random"],
                 metrics=["top_quarter", "saliency_miou"], limit=12, device="cpu", out=tmp_path / "run",
                 keep_maps=True, progress=False)  # fmt: skip
    versions = {(cell.explainer, cell.metric): (cell.explainer_version, cell.metric_version) for cell in run.cells}
    assert all(map(OWNER.fullmatch, versions["local_contrast", "top_quarter"]))
    assert versions["random", "saliency_miou"] == (1, sb.load_metric("saliency_miou").version)
    assert run.summary["provenance"]["libraries"]["saliency-example"] == "1.0.0"
    assert "--explainers local_contrast random --metrics top_quarter saliency_miou" in run.summary["command"]
    page = run.report.read_text(encoding="utf-8")
    assert "Measure how much of the highest quarter of a map is inside the mask." in page
    assert "Measure how much each pixel differs from its surroundings." in page
    masks = {row["image_id"]: row["mask"] for row in sb.load_dataset(str(shapes), split="test")}
    scores = run.records().filter(lambda row: row["metric"] == "top_quarter" and row["explainer"] == "local_contrast")
    maps, by_hand = run.maps()["local_contrast"], []
    for image_id in scores["image_id"]:
        values, inside = read_pair(maps[image_id][None], np.array(masks[image_id])[None])
        highest = np.argsort(-values.ravel(), kind="stable")[: values.size // 4]
        by_hand.append(inside.ravel()[highest].mean())
    assert np.allclose(scores["value"], by_hand, atol=2 / 256)  # maps are stored in float16, which may swap two pixels


def few(shapes, resnet, out):
    return {"dataset": str(shapes), "model": str(resnet), "explainers": ["local_contrast"], "metrics": ["top_quarter"],
            "limit": 4, "device": "cpu", "out": out, "progress": False}  # fmt: skip


def test_run_is_read_without_the_plugin(example, resnet, shapes, tmp_path, monkeypatch, found_anew):
    settings = few(shapes, resnet, tmp_path / "run")
    shown = str(sb.run(**settings))
    monkeypatch.undo()
    found_anew()
    assert str(sb.load_run(tmp_path / "run")) == shown
    sb.report(tmp_path / "run", tmp_path / "page.html")
    assert "local_contrast" in (tmp_path / "page.html").read_text(encoding="utf-8")
    refused("unknown explainer 'local_contrast'", sb.run, **settings)


def test_edited_plugin_recomputes_without_new_version(example, installed, resnet, shapes, tmp_path, found_anew):
    settings = few(shapes, resnet, tmp_path / "run")
    sb.run(**settings)
    assert sb.run(**settings).complete
    before = sb.load_explainer("local_contrast").version, sb.load_metric("top_quarter").version
    path = installed / "saliency_example" / "explainers" / "local_contrast.py"
    content = path.read_bytes()
    path.write_bytes(content.replace(b".mean(dim=1)", b".amax(dim=1)"))
    try:
        # this process has already imported the old version
        assert sb.load_explainer("local_contrast").version == before[0]
        forget(found_anew)
        assert sb.load_explainer("local_contrast").version != before[0]
        assert sb.load_metric("top_quarter").version == before[1]
        assert not sb.run(**settings).complete
    finally:
        path.write_bytes(content)
        forget(found_anew)
    assert sb.load_explainer("local_contrast").version == before[0]


def forget(found_anew):
    """Import plugins again, as in another process."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "saliency_example"]:
        del sys.modules[name]
    found_anew()


@pytest.mark.thorough
def test_plugin_dataset_and_suite_work(example, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["build", "stripes-xai", "--count", "12", "--out", "stripes"]) == 0
    line = ["suite", "example-main", "--smoke", "--out", "suite", "--device", "cpu"]
    assert "top quarter" in said(capsys, line)


@pytest.mark.slow
def test_plugin_metric_loads_with_evaluate(installed, tmp_path):
    """Use a separate process, because `evaluate` reads its cache when it is imported."""
    environment = os.environ | {"PYTHONPATH": str(installed), "HF_MODULES_CACHE": str(tmp_path / "modules"),
                                "HF_EVALUATE_OFFLINE": "1", "HF_HUB_OFFLINE": "1"}  # fmt: skip
    code = (
        "from saliency_bench.cli import main; import evaluate; main(['install-metrics', 'top_quarter']); "
        "inputs = {'predictions': [[[0, 0], [0, 1.0]]], 'references': [[[0, 0], [0, 1]]]}; "
        "print(evaluate.load('top_quarter').compute(**inputs))"
    )
    line = [sys.executable, "-c", code]
    done = subprocess.run(line, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert "{'top_quarter': 1.0}" in done.stdout, done.stderr


BROKEN = {
    "no module": ("broken.nowhere", "", "broken.nowhere is not a file"),
    "no package": ("no_such_package.item", "", "there is no module no_such_package.item"),
    "no Python": ("broken.item", "# A comment.\ndef item(:", "item.py, line 2: invalid syntax"),
    "no text": ("broken.item", "# \0", "item.py"),
    "no name": ("broken:item[", "", "there is no module broken:item["),
    "relative": (".item", "", "there is no module .item"),
    "empty": ("", "", "there is no module"),
    "no import": ("broken.item", '"""An item."""\nimport nothing_of_this_name', "named 'nothing_of_this_name'"),
}


@pytest.mark.parametrize(("kind", "what"), [
    *(("explainers", what) for what in BROKEN),
    *((kind, what) for kind in ("metrics", "datasets") for what in ("no module", "no import")),
])  # fmt: skip
def test_unusable_item_is_marked_and_breaks_nothing(kind, what, tmp_path, capsys, added):
    module, text, why = BROKEN[what]
    added(kind, "item", module, text)
    for words in (["list"], ["list", kind]):
        assert main(words) == 0
        shown = capsys.readouterr()
        assert shown.err == ""
        (line,) = re.findall(r"^  cannot be used\n +item +(.*)", shown.out, re.MULTILINE)
        assert line.startswith(f"{kind[:-1]} item of broken 0.1 cannot be ")
        assert why in line
    assert json.loads(said(capsys, ["list", kind, "--json"]))[kind]["item"] == line
    words = ["run", "--dataset", "d", "--model", "m", "--explainers", "gradcam", "--metrics", "saliency_miou"]
    words[words.index(f"--{kind.removesuffix('s') if kind == 'datasets' else kind}") + 1] = "item"
    run = [[*words, "--out", tmp_path / "run"]] * (what != "no import")  # this run loads the dataset first
    for words in (["help", "item"], ["list", "item"], *run):
        assert refusal(capsys, words) == f"saliency-bench: error: {line}\n"


@pytest.mark.parametrize(("points", "words", "known"), [
    ("[saliency_bench.explainers]\nno sign of equality\n", r"^the entry points of broken 0\.1 cannot be read",
     False),
    ("item = broken.item\n[saliency_bench.explainers\n", "", False),
    ("[saliency_bench.explainers]\n a b\x1b[2J = broken.item\n", r"^explainer a b\\x1b\[2J of broken 0\.1 cannot",
     False),
    ("[saliency_bench.explainers]\n../up = broken.item\n", r"^explainer \.\./up of broken 0\.1 cannot", False),
    ("[saliency_bench.explainers]\n = broken.item\n", r"of broken 0\.1 cannot", False),
    ("[saliency_bench.explainers]\nitem = bro\xffken.item\n", r"^the entry points of broken 0\.1 cannot be", False),
    ("[saliency_bench.explainers]\nitem = broken.item\n", "", True),
])  # fmt: skip
def test_malformed_entry_points_break_no_other_package(
    points, words, known, tmp_path, found_anew, example, capsys, added
):
    added("explainers", "item", "broken.item", "import saliency_bench as sb\n")
    (tmp_path / "broken-0.1.dist-info" / "entry_points.txt").write_bytes(points.encode("latin-1"))
    found_anew()
    before = set(registry.names("explainers"))
    lines = [line.removeprefix("saliency-bench: ") for line in capsys.readouterr().err.splitlines()]
    assert len(lines) == bool(words)
    assert not words or re.search(words, lines[0])
    assert ("item" in before) == known
    assert {"gradcam", "centre"} < before, "and those of another package stay"


def test_package_without_metadata_is_named_by_its_folder(tmp_path, found_anew, added):
    added("explainers", "item", "broken.nowhere", "")
    (tmp_path / "broken-0.1.dist-info" / "METADATA").unlink()
    found_anew()
    refused(r"explainer item of broken-0\.1 cannot be used: broken.nowhere is not a file", sb.load_explainer, "item")


@pytest.mark.parametrize("text", ["raise KeyboardInterrupt", "import os, signal\nos.kill(os.getpid(), signal.SIGINT)"])
def test_plugin_interrupt_does_not_stop_the_command(text, capsys, added):
    added("explainers", "item", "broken.item", f'"""An item."""\n{text}\n')
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a background process ignores SIGINT
    try:
        code = main(["list", "explainers"])
    finally:
        signal.signal(signal.SIGINT, before)
    shown = capsys.readouterr()
    if "kill" in text:  # a real signal
        assert code == 130
    else:
        assert (code, shown.err) == (0, "")
        assert "explainer item of broken 0.1 cannot be imported: KeyboardInterrupt" in shown.out


OTHER_NAME = "import saliency_bench as sb\n@sb.explainer(version=1)\ndef items(classifier, images, target): ..."


@pytest.mark.parametrize(("text", "why"), [
    ("import sys; sys.exit(0)", " cannot be imported: SystemExit: 0"),
    ("raise GeneratorExit", " cannot be imported: GeneratorExit"),
    (OTHER_NAME, r": broken\.item has no function item"),
])  # fmt: skip
def test_loading_an_unusable_item_gives_one_line(text, why, added):
    added("explainers", "item", "broken.item", f'"""An item."""\n{text}\n')
    refused(rf"explainer item of broken 0\.1{why}", sb.load_explainer, "item")
    assert sb.load_explainer("gradcam").name == "gradcam"


def test_builtin_names_are_not_replaced(capsys, added):
    added("explainers", "gradcam", "broken.gradcam", "raise SystemError('never')")
    assert sb.load_explainer("gradcam").version == registry.load("explainers", "gradcam").gradcam.declaration.version
    (line,) = capsys.readouterr().err.splitlines()
    why = "explainer gradcam of broken 0.1 cannot be used: saliency-bench has one with the same name"
    assert line == f"saliency-bench: {why}"


def test_first_of_two_packages_with_one_name_is_used(tmp_path, monkeypatch, found_anew, capsys):
    for name in ("broken", "another"):
        package(tmp_path, "explainers", "item", f"{name}.item", f'"""An item of {name}."""', name)
    monkeypatch.syspath_prepend(tmp_path)
    found_anew()
    assert registry.summary(registry.files("explainers")["item"]) == "An item of another."
    (line,) = capsys.readouterr().err.splitlines()
    assert line == "saliency-bench: explainer item of broken 0.1 is left out: another 0.1 has one with the same name"
    monkeypatch.undo()


FLAT = '''"""A metric in one file."""
import saliency_bench as sb

@sb.metric(version=1, higher_is_better=True, range=(0, 1))
def item(maps, *, power: float = 1.0):
    return maps.mean(axis=(1, 2)).clip(0, 1) ** power
'''


def test_metric_may_be_a_single_file(tmp_path, resnet, shapes, added):
    added("metrics", "item", "broken.item", FLAT)
    run = sb.run(**few(shapes, resnet, tmp_path / "run") | {"explainers": ["random"], "metrics": ["item"]})
    assert 0.45 < run.cells[0].value < 0.55
    refused(r"metric item has no module for evaluate; write item\.py next to its score\.py", metric_files, "item")
    assert not has_module("item")
    assert has_module("saliency_miou")


def test_failing_metric_is_left_out_of_all_metrics(capsys, added):
    added("metrics", "item", "broken.item", '"""An item."""\n1 / 0')
    assert registry.usable_names("metrics") == [name for name in sb.list_metrics() if name != "item"]
    (line,) = capsys.readouterr().err.splitlines()
    assert line == "saliency-bench: metric item of broken 0.1 cannot be imported: ZeroDivisionError: division by zero"


def test_failing_cost_is_reported_in_the_list(capsys, added):
    declared = '@sb.explainer(version=1, needs="outputs", passes=lambda *_: 1 / 0)'
    text = f"import saliency_bench as sb\n\n{declared}\ndef item(classifier, images, target): ...\n"
    added("explainers", "item", "broken.item", text)
    shown = said(capsys, ["list", "explainers"])
    assert "[explainer item: passes raised ZeroDivisionError: division by zero]" in shown


def test_invalid_suite_is_reported_and_breaks_no_other(tmp_path, found_anew, capsys, added):
    added("suites", "item", "broken", "")
    (tmp_path / "broken" / "odd.yaml").write_text("paper: [")
    found_anew()
    assert {"p0", "p1-figure12"} <= set(sb.list_suites())
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("saliency-bench: suite odd cannot be used: ")
    shown = said(capsys, ["list", "suites"])
    assert re.search(r"^ +odd +cannot be used: .*odd\.yaml cannot be read as YAML", shown, re.MULTILINE)


def test_builtin_suites_are_not_replaced(tmp_path, found_anew, capsys, added):
    before = find_suite("p0")[0]
    added("suites", "item", "broken", "")
    (tmp_path / "broken" / "p0.yaml").write_text("paper: Another\n")
    found_anew()
    assert find_suite("p0")[0] == before
    (line,) = capsys.readouterr().err.splitlines()
    assert re.fullmatch(
        r"saliency-bench: suite .*broken/p0\.yaml cannot be used: .*p0\.yaml has the same name; rename .*", line
    )


def test_missing_suite_folder_is_reported(capsys, added):
    added("suites", "item", "broken.suites", "")
    why = "suite item of broken 0.1 cannot be used: broken.suites is not a folder"
    assert why in said(capsys, ["list", "suites"])
    refused(why, find_suite, "item")


def package(folder, kind, name, module, text, package="broken"):
    """Write an installed package with one entry point and one file."""
    (folder / package).mkdir()
    (folder / package / "__init__.py").write_text("raise RuntimeError('imported to be listed')" if not text else "")
    if text:
        (folder / f"{module.replace('.', '/')}.py").write_text(text)
    about = folder / f"{package}-0.1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 0.1\n")
    (about / "entry_points.txt").write_text(f"[saliency_bench.{kind}]\n{name} = {module}\n")
