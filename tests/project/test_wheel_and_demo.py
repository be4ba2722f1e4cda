"""Tests of the source archive and the wheel, outside the checkout: the help of every command, and the demo."""

import json
import os
import re
import resource
import subprocess
import sys
import sysconfig
import tarfile
import venv
from pathlib import Path
from zipfile import ZipFile

import pytest
from test_plugins import PLUGINS

import saliency_bench
from saliency_bench import registry

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def no_python_path():
    """Install and import the wheel even if PYTHONPATH contains the checkout."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("PYTHONPATH", raising=False)
        yield


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """Create an environment with the wheel, built from the source archive, and the libraries of this environment."""
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT], check=True, capture_output=True
    )
    (wheel,) = folder.glob("*.whl")
    venv.create(folder / "venv", with_pip=True)
    python = folder / "venv" / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "--quiet", "--no-deps", wheel], check=True)
    site = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()
    # Folders in a .pth file are searched, but .pth files in these folders (from an editable install) are not read.
    (Path(site) / "libraries.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder


def tracked() -> set[str]:
    done = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True)
    return set(done.stdout.splitlines())


def test_wheel_contains_only_the_packages(installed):
    (wheel,) = installed.glob("*.whl")
    inside = {name for name in ZipFile(wheel).namelist() if ".dist-info/" not in name}
    folders = tuple(f"{name}/" for name in PLUGINS)
    expected = {f"saliency_bench/{name}" for name in tracked() if name.startswith(folders)}
    expected |= {name for name in tracked() if name.startswith("saliency_bench/")}
    assert inside == {name for name in expected if not name.endswith(".png")}


def test_source_archive_contains_the_test_files(installed):
    (archive,) = installed.glob("*.tar.gz")
    with tarfile.open(archive) as file:
        inside = {name.partition("/")[2] for name in file.getnames()}
    shown = {name for name in tracked() if not name.startswith(".") and not name.endswith(".png")}
    assert shown - inside == set()


def test_version_is_equal_everywhere(installed):
    version = call(installed, "--version").stdout.strip()
    assert version == saliency_bench.__version__
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text()
    assert re.search(r"^## (\d\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)[1] == version
    assert [path.name for path in installed.glob("*.whl")] == [f"saliency_bench-{version}-py3-none-any.whl"]


def test_install_hint_fits_wheel_and_checkout(installed):
    """Test the suggested command: it adds the libraries of an extra to a wheel, but installs a checkout again."""
    code = "from saliency_bench.registry import install_hint; print(install_hint('lime'))"
    python = installed / "venv" / "bin" / "python"
    done = subprocess.run([python, "-c", code], cwd=installed, capture_output=True, text=True, check=True)
    assert done.stdout == 'pip install "saliency-bench[lime]"\n'
    assert registry.install_hint("lime") in ('pip install -e ".[lime]"', f'pip install -e "{ROOT}[lime]"')


def call(installed, *words, **env):
    command = installed / "venv" / "bin" / "saliency-bench"
    home = {"HF_HOME": str(installed / "hf"), "SALIENCY_BENCH_CACHE": str(installed / "cache"), "HF_HUB_OFFLINE": "1"}
    return subprocess.run([command, *words], cwd=installed, env=os.environ | home | env, capture_output=True, text=True)


def test_every_command_shows_its_help(installed):
    names = registry.names("push_scripts")
    code = f"""
from saliency_bench.cli import main
for name in {names}:
    try: main([name, '--help'])
    except SystemExit as end: assert not end.code
"""
    python = installed / "venv" / "bin" / "python"
    done = subprocess.run([python, "-c", code], cwd=installed, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert [name for name in names if f"usage: saliency-bench {name} " not in done.stdout] == []


@pytest.mark.thorough
def test_demo_reaches_its_promised_results(installed):
    done = call(installed, "demo", "--json")
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    folder = installed / "saliency-bench-demo"
    assert json.loads((folder / "resnet" / "training_log.json").read_text())["test_accuracy"] > 0.95
    assert summary["model"]["accuracy"]["value"] > 0.95
    assert summary["dataset"]["used"] == summary["dataset"]["samples"] > 200
    cells = {(cell["explainer"], cell["metric"]): cell for cell in summary["cells"]}
    metrics = ("saliency_miou", "saliency_pointing_game", "saliency_insertion")
    assert len(cells) == 5 * len(metrics)
    for metric in metrics:
        assert cells["gradcam", metric]["low"] > cells["random", metric]["high"], metric
    assert cells["centre", "saliency_pointing_game"]["value"] <= cells["random", "saliency_pointing_game"]["value"]
    page = (folder / "run" / "report.html").read_text()
    assert all(f"{cell['value']:.3f}" in page for cell in summary["cells"])
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss < 4 * 2**20  # KiB


@pytest.mark.thorough
def test_second_demo_reuses_earlier_results(installed):
    done = call(installed, "demo")
    assert done.returncode == 0, done.stderr
    assert "gradcam" in done.stdout
    assert "report.html" in done.stdout
    assert "training" not in done.stdout
