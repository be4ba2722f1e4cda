"""Tests of metrics installed for `evaluate.load` by name: from any folder, offline and online, without the package."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from commands import said
from evaluate import loading
from evaluate.loading import get_imports
from only_evaluate import only_evaluate  # noqa: F401
from refusals import refused

from saliency_bench import registry
from saliency_bench.publishing import install_metrics as installing
from saliency_bench.publishing.install_metrics import install_metrics
from saliency_bench.publishing.vendoring import metric_files

SCRIPT = """
import sys
import evaluate
metric = evaluate.load("saliency_miou")
maps = [[[0, 0, 0, 0], [0, 8, 0, 0], [0, 0, 6, 7], [0, 0, 4, 2]]]
masks = [[[0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 1, 1], [0, 0, 1, 1]]]
print(metric.compute(predictions=maps, references=masks, per_sample=True))
print(evaluate.load("saliency_pointing_game").compute(predictions=maps, references=masks))
"""
PRINTED = "{'saliency_miou': 0.4, 'scores': [0.4]}\n{'saliency_pointing_game': 0.0}\n"


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """Use an empty module cache for this process, because evaluate reads its location only once."""
    modules = tmp_path / "modules" / "evaluate_modules"
    modules.mkdir(parents=True)
    monkeypatch.setattr(loading, "init_dynamic_modules", lambda *_: str(modules))
    return modules


@pytest.fixture(scope="module")
def installed(shared_hub, only_evaluate):  # noqa: F811
    """Install the metrics with the command, and return a function that runs code with only evaluate and numpy.

    -S excludes the site-packages of this environment.
    """
    assert shared_hub.command("install-metrics").returncode == 0

    def run(code, **variables):
        done = shared_hub.run([sys.executable, "-S", "-c", code], PYTHONPATH=str(only_evaluate), **variables)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


@pytest.mark.slow
def test_metrics_load_with_only_evaluate_and_numpy(installed, tmp_path):
    """Test loading by name and by the path of a folder, and a metric that needs the package to run a classifier."""
    folder = tmp_path / "saliency_miou"
    folder.mkdir()
    for file, text in metric_files("saliency_miou").items():
        (folder / file).write_text(text)
    rest = """
import importlib.util
assert not any(importlib.util.find_spec(name) for name in ("torch", "saliency_bench", "scipy", "transformers"))
try:
    evaluate.load("saliency_insertion").compute(predictions=[[[0, 1]]], references=[0], images=0, classifier=0)
except ImportError as error:
    print(error)
"""
    by_path = SCRIPT.replace('load("saliency_miou")', f'load("{folder}")')
    message = "saliency_insertion needs saliency-bench to run the classifier; run `pip install saliency-bench`\n"
    assert installed(SCRIPT + by_path + rest, HF_EVALUATE_OFFLINE="1") == PRINTED * 2 + message


@pytest.mark.slow
def test_installed_name_loads_online_if_the_hub_lacks_it(installed, shared_hub):
    assert installed(SCRIPT) == PRINTED
    assert shared_hub.lines("evaluate-metric/saliency_miou")


def in_use(cache):
    found = loading.CachedEvaluationModuleFactory("evaluate-metric--saliency_miou", dynamic_modules_path=str(cache))
    return found.get_module().hash


def test_last_installed_version_is_used(cache, monkeypatch):
    texts = metric_files("saliency_miou")
    newer = texts | {"score.py": texts["score.py"].replace("version=", "version=1")}
    for files in (texts, newer, texts, newer):
        monkeypatch.setattr(installing, "metric_files", lambda name, files=files: files)
        done, again = install_metrics(["saliency_miou"])[0], install_metrics(["saliency_miou"])[0]
        assert (done.changed, again.changed, again.path) == (True, False, done.path)
        assert in_use(cache) == Path(done.path).name
        assert Path(done.path, "score.py").read_text() == files["score.py"]
    assert len(list(cache.rglob("saliency_miou.py"))) == 2


def test_files_outside_the_evaluate_hash_are_updated(cache, monkeypatch):
    texts = metric_files("saliency_miou")
    install_metrics(["saliency_miou"])
    monkeypatch.setattr(installing, "metric_files", lambda name: texts | {"maps.py": texts["maps.py"] + "#\n"})
    done = install_metrics(["saliency_miou"])[0]
    assert done.changed
    assert Path(done.path, "maps.py").read_text().endswith("#\n")
    assert not install_metrics(["saliency_miou"])[0].changed


@pytest.mark.slow
def test_unsupported_evaluate_version_is_rejected(cache, monkeypatch):
    monkeypatch.setattr(loading, "_create_importable_file", lambda local_path, name: None)
    refused(r"evaluate==0\.4\.6", install_metrics)
    monkeypatch.delattr(loading, "_create_importable_file")
    refused(r"evaluate==0\.4\.6", install_metrics)


def test_command_installs_all_or_named_metrics(cache, capsys):
    done = json.loads(said(capsys, ["install-metrics", "--json"]))
    assert [item["name"] for item in done] == registry.names("metrics")
    assert all(item["changed"] and Path(item["path"]).is_dir() for item in done)
    assert said(capsys, ["install-metrics", "saliency_miou"]).startswith("unchanged  saliency_miou  ")
    assert "did you mean saliency_miou" in said(capsys, ["install-metrics", "saliency_miuo"], 2)


def test_metric_files_are_self_contained(tmp_path):
    """Test that each main script imports all files that its files import. Files of several metrics are read once."""
    imports = {}

    def imports_of(file, text):
        if text not in imports:
            compile(text, file, "exec")
            lines = text.splitlines()
            assert not any(line.startswith(("from saliency_bench", "import saliency_bench")) for line in lines), file
            (tmp_path / file).write_text(text)
            found = get_imports(str(tmp_path / file))
            imports[text] = {f"{path}.py" for kind, _, path, _ in found if kind == "internal"}
        return imports[text]

    for name in registry.names("metrics"):
        texts = metric_files(name)
        assert {f"{name}.py", "README.md", "app.py"} <= set(texts)
        scanned = imports_of(f"{name}.py", texts[f"{name}.py"])
        assert {path for file in scanned for path in imports_of(file, texts[file])} <= scanned, name


def test_help_imports_neither_torch_nor_evaluate():
    script = (
        "import sys; from saliency_bench.cli import main\n"
        "try: main(['install-metrics', '--help'])\n"
        "except SystemExit: print(sorted({'torch', 'evaluate', 'datasets'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.stdout.endswith("[]\n")
    assert "saliency-bench install-metrics\n" in done.stdout
    assert "after each edit of your own metric" in " ".join(done.stdout.split())
