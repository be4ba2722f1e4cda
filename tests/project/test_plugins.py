"""Tests of the imports of plugins, and that an item is added by adding one file."""

import os
import shutil
import subprocess
import sys

import contracts
import pytest
from test_layers import CORE, FILES, ROOT, imports_of

PLUGINS = ("explainers", "metrics", "hub_builders", "model_cards", "push_scripts", "spaces", "suites")
FREE = ("push_scripts", "spaces", "suites")


def test_outer_modules_import_no_plugin():
    """Test the modules outside of the layers; `test_layers.py` tests all others."""
    for path in set(CORE.rglob("*.py")) - set(FILES):
        assert [name for name in imports_of(path) if name.partition(".")[0] in PLUGINS] == [], path


@pytest.mark.parametrize("folder", sorted(set(PLUGINS) - set(FREE)))
def test_plugins_import_only_the_core_and_themselves(folder):
    """Plugins may import their own folder and private modules (`_name.py`).

    `_examples.py` is free, because it uses shapes_xai.
    """
    for path in (ROOT / folder).rglob("*.py"):
        for name in imports_of(path) if path.name != "_examples.py" else ():
            kind, item = (*name.split("."), "_")[:2]
            own = path.stem if path.parent.name == folder else path.parent.name
            allowed = kind == folder and (item.startswith("_") or item == own)
            assert kind not in PLUGINS or allowed, f"{path.relative_to(ROOT)} imports {name}"


@pytest.mark.parametrize("name", contracts.names("push_scripts"))
def test_commands_define_all_required_parts(name):
    contracts.check("push_scripts", name)


HELP = """
import sys, saliency_bench.spec, saliency_bench.cli as c
for name in sys.argv[1:]:
    try: c.main([name, '--help'] if name else ['--help'])
    except SystemExit: pass
    heavy = {'torch', 'sqlalchemy', 'gradio'} & set(sys.modules)
    if heavy: sys.exit(f'help of {name} imports {heavy}')
    print('END OF HELP')"""


def test_help_shows_examples_and_imports_nothing_heavy():
    names = ["", *contracts.complete("push_scripts")]
    done = subprocess.run([sys.executable, "-c", HELP, *names], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for name, shown in zip(names, done.stdout.split("END OF HELP\n")[:-1], strict=True):
        assert f"saliency-bench {name}" in shown.partition("example")[2] or not name


ADDED = {
    "explainers/brightness.py": '"""Brightness as saliency."""\n'
    "import saliency_bench as sb\n\n@sb.explainer(version=1)\n"
    "def brightness(classifier, images, target, *, power: int = 1):\n"
    '    """Maps."""\n    return images.mean(dim=1) ** power\n',
    "metrics/saliency_mean/score.py": '"""Mean of a map."""\nimport saliency_bench as sb\n\n'
    "@sb.metric(version=1, higher_is_better=True, range=(0, 1))\n"
    'def saliency_mean(maps):\n    """Scores (B,)."""\n    return maps.mean(axis=(1, 2))\n',
    "metrics/saliency_mean/saliency_mean.py": '"""Shell."""\n',
    "hub_builders/two_dots.py": '''"""Two dots."""
import numpy as np
from datasets import ClassLabel
VERSION, TITLE, LICENSE, REDISTRIBUTE, EMBEDDED = "1", "Two dots", "cc0-1.0", True, True
CITATION = RULE = "none"
PAPER_COUNTS: dict = {}

def features():
    return {"label": ClassLabel(names=["left", "right"])}

def samples(source, log, *, count: int = 60):
    for index in range(count):
        image, name = np.zeros((32, 32, 3), np.uint8), ("left", "right")[index % 2]
        image[10:20, 4 + 16 * (index % 2) :][:, :8] = 255
        yield {"image_id": str(index), "image": image, "label": name, "mask": image[..., 0] > 0}
''',
    "push_scripts/hello.py": '"""Say hello.\n\nexample:\n  saliency-bench hello\n"""\n\n'
    "def arguments(parser):\n    pass\n\ndef main(args):\n    print('hello')\n",
}

USE = """
import torch, saliency_bench as sb
from saliency_bench.cli import main
assert "brightness" in sb.list_explainers() and "two-dots" in sb.list_datasets()
assert "saliency_mean" in sb.list_metrics()
model = torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(2), torch.nn.Flatten(), torch.nn.Linear(12, 2))
model = sb.load_classifier(model, mean=0, std=1)
done = sb.run(dataset="two-dots", model=model, explainers=["brightness:power=2"], out="run", limit=4, device="cpu",
              metrics=["saliency_mean", "saliency_miou"], progress=False)
assert [cell["metric"] for cell in done.summary["cells"]] == ["saliency_mean", "saliency_miou"]
assert done.summary["cells"][1]["value"] == 1.0
assert main(["hello"]) == 0
"""


@pytest.mark.slow
def test_new_item_needs_only_its_own_file(tmp_path):
    """Test a copy of the project laid out like a wheel, without editing any list or table."""
    package = tmp_path / "saliency_bench"
    shutil.copytree(ROOT / "saliency_bench", package)
    for folder in PLUGINS:
        shutil.copytree(ROOT / folder, package / folder)
    for name, text in ADDED.items():
        (package / name).parent.mkdir(exist_ok=True)
        (package / name).write_text(text)
    paths = {"PYTHONPATH": str(tmp_path), "SALIENCY_BENCH_CACHE": str(tmp_path / "cache"),
             "HF_HOME": str(tmp_path / "hf")}  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", USE], cwd=tmp_path, env=os.environ | paths, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "hello\n"
