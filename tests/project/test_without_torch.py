"""Tests of the modules that need no torch and give the same results without it."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from saliency_bench.utils.stand_ins import COMPUTING

ROOT = Path(__file__).parents[2]
CORE = ROOT / "saliency_bench"
# Modules that must not import torch, directly or indirectly, except inside functions that compute.
READ = ("errors", "score_notes", "options", "registry", "maps", "target_weights", "spec", "settings", "declarations",
        "bound_explainer", "bound_metric", "hub", "data", "read", "studies", "publishing", "board",
        "utils.overlays")  # fmt: skip
COMPUTE = ("compute.minibatches", "board.recompute", "board.template")  # modules of these packages that run networks
EVERYTHING = """
import sys
import saliency_bench as sb
from saliency_bench import registry
from saliency_bench.bound_explainer import registered_explainer
from saliency_bench.bound_metric import registered_metric
from saliency_bench.cli import main
from saliency_bench.board.view.live import Live

run, other, board, out = sys.argv[1:]
for command in (
    ["report", run, "--pairs", "--by-correct", "--out", f"{out}/one.html"],
    ["report", run, other, "--out", f"{out}/two.html"],
    ["check", run, "--require", "gradcam:saliency_miou>=0.01", "gradcam:saliency_kae>random"],
    ["analyse", run, "--what", "correlation", "--out", f"{out}/three"],
    ["list", "explainers", "metrics", "datasets"],
    ["help", "saliency_kae"],
):
    print(command[0], main(command))
loaded = sb.load_run(run)
for text in (loaded, loaded._repr_html_(), loaded.to_pandas().to_csv(), loaded.by_correct().to_csv(),
             loaded.compare(other).to_csv(), loaded.records()[:], *map(dict, loaded.maps().values())):
    print(text)
print(main(["leaderboard", "--results", board, "--json"]))
page = Live(board).page
print(page.show({}), page.show({"tab": "about"}), [page.export(kind, {}) for kind in ("csv", "tex", "bib")])
for name in registry.names("metrics"):
    metric = registered_metric(name)
    print(metric.identity, metric.inputs, metric.facts, metric.declaration.passes_of(dict(metric.options), 32, 32))
for name in registry.names("explainers"):
    explainer = registered_explainer(name)
    print(explainer.identity, explainer.baseline, explainer.declaration.passes_of(dict(explainer.options), 32, 32))
"""


def python(code, *args, absent=True):
    support = str(ROOT / "tests" / "support")
    code = f"import sys; sys.path.append({support!r})\n{'import without_torch' * absent}\n{code}"
    return subprocess.run([sys.executable, "-c", code, *map(str, args)], capture_output=True, text=True)


def modules_of(place):
    for root in (CORE, ROOT):
        path = root.joinpath(*place.split("."))
        for file in [path.with_suffix(".py")] if path.with_suffix(".py").is_file() else sorted(path.rglob("*.py")):
            yield ".".join(file.relative_to(root).with_suffix("").parts).removesuffix(".__init__")


@pytest.mark.parametrize("places", [READ, pytest.param(["spaces.leaderboard"], marks=pytest.mark.slow)])
def test_reading_modules_import_no_torch(places):
    names = [name for place in places for name in modules_of(place) if name not in COMPUTE]
    assert len(names) > (150 if places == READ else 0)
    code = (
        "import sys, traceback, saliency_bench.read.finished_run\nfrom importlib import import_module\n"
        "assert not {'datasets', 'pandas'} & set(sys.modules), 'slow imports'\n"
        "for name in sys.argv[1:]:\n"
        "    try: import_module(f'saliency_bench.{name}')\n    except ImportError: traceback.print_exc(limit=-6)"
    )
    done = python(code, *names)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.fixture(scope="module")
def runs(tmp_path_factory, shapes, resnet):
    import saliency_bench as sb
    from saliency_bench.board.submission import of_run

    folder = tmp_path_factory.mktemp("runs")
    for name, target in (("first", "label"), ("second", "predicted")):
        sb.run(
            dataset=shapes, model=resnet, explainers=["gradcam", "random"], target=target, limit=16, out=folder / name,
            metrics=["saliency_miou", "saliency_kae", "saliency_own_region"], keep_maps=True, progress=False,
        )  # fmt: skip
    of_run(folder / "first", "ada").write(folder / "board")
    return folder


@pytest.mark.slow
def test_run_is_read_equally_without_torch(runs, tmp_path):
    read = {}
    for absent in (False, True):
        out = tmp_path / "out"
        done = python(EVERYTHING, runs / "first", runs / "second", runs / "board", out, absent=absent)
        assert done.returncode == 0, done.stderr
        files = {path.relative_to(out): path.read_bytes() for path in sorted(out.rglob("*")) if path.is_file()}
        read[absent] = done.stdout, done.stderr, files
        out.rename(tmp_path / f"without {absent}")
    assert read[True] == read[False]
    assert {"one.html", "two.html"} < {path.name for path in read[True][2]}


@pytest.mark.parametrize("code", [
    "from saliency_bench.cli import main; sys.exit(main(['run', '--dataset', sys.argv[1], '--model', sys.argv[2], "
    "'--explainers', 'gradcam', '--metrics', 'saliency_miou', '--out', sys.argv[3]]))",
    "import saliency_bench as sb; sb.load_explainer('gradcam')(None, None, None)",
    "import saliency_bench as sb; sb.load_explainer('random').function.__globals__['torch'].ones(3)",
    "import saliency_bench as sb; sb.load_classifier(sys.argv[2])",
])  # fmt: skip
def test_computing_without_torch_names_torch(code, shapes, resnet, tmp_path):
    done = python(code, shapes, resnet, tmp_path / "run")
    assert done.returncode
    assert re.search("needs torch|No module named 'torch'", done.stderr.splitlines()[-1]), done.stderr


def test_reading_requirements_exclude_torch():
    needed = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["dependencies"]
    lines = (ROOT / "requirements-read.txt").read_text(encoding="utf-8").splitlines()
    assert lines[1:] == [line for line in needed if not line.startswith(COMPUTING)]


def test_metrics_of_arrays_compute_without_torch():
    code = "import saliency_bench as sb; print(sb.load_metric('saliency_miou')([[[0., 1.]]], [[[0, 1]]]))"
    assert python(code).stdout == "[1.]\n"
