"""Shared fixtures and hooks. Tests never use the caches of the user who runs them."""

import gc
import os
import re
import sys
from fnmatch import fnmatch
from pathlib import Path

# Use one thread per process by default, because two pytest-xdist workers with one thread per core slow each other down
# considerably. Torch reads this variable once, when it is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Do not wrap tables to the width of the user's terminal, which pytest-xdist passes on.
os.environ.pop("COLUMNS", None)

# Import torch, datasets and transformers only where they are used, so that other tests start at once.
import hypothesis
import pytest

# modules shared by tests
sys.path.extend(str(path) for path in sorted(Path(__file__).parent.iterdir()) if path.is_dir())
sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))
import budget
from local_hub.fixtures import here, hub, shared_hub  # noqa: F401
from local_hub.pets import closed, model, pets, source  # noqa: F401

from saliency_bench.utils.messages import LOGGER, ShownLines

TESTS = Path(__file__).parent
# {marker: files of its tests}, so that for example `pytest -m "slow and hub"` runs the slow tests of one area.
AREAS = {
    "browser": ("board/test_board_browser.py", "board/test_board_submission.py", "read/test_pairs.py",
                "studies/test_*page.py", "studies/test_drawing.py"),
    "hub": ("hub/*", "publishing/test_publishing.py", "board/test_submitting.py", "board/test_review.py",
            "push_scripts/test_launch.py"),
    "kills": ("compute/test_kill_and_continue.py", "compute/test_disturbances.py", "compute/test_part_files.py"),
    "studies": ("studies/*",),
    "suites": ("recipes/test_suites*", "compute/test_retraining.py", "compute/test_training*"),
    "wheel": ("project/test_wheel_and_demo.py", "project/test_documentation.py", "project/test_notebook.py",
              "publishing/test_install_metrics.py"),
}  # fmt: skip


def pytest_ignore_collect(collection_path, config):
    """Skip files that contain none of the selected tests, because importing all files takes half a minute.

    With `-k test_name`, or `-k "test_name and ..."`, import only files that contain this name. With
    `-m "slow and not thorough"`, import only files with marks of slow tests.
    """
    keyword, marks = config.getoption("keyword"), config.getoption("markexpr")
    if named := re.fullmatch(r"(test_\w+)( and (not )?\w+)*", keyword):
        wanted = named[1]
    elif re.fullmatch(r"(slow|thorough)( and (not )?\w+)*", marks):
        wanted = r"mark\.(slow|thorough|sample)\b"
    else:
        return None
    if not collection_path.is_dir() and collection_path.suffix != ".py":
        return None
    files = collection_path.rglob("test_*.py") if collection_path.is_dir() else [collection_path]
    contain = (re.search(wanted, f"{file.name} {file.read_text(encoding='utf-8')}") for file in files)
    return None if any(contain) else True


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Mark tests by area.

    With `sample(fast, slow)`, these numbers of items are fast and slow, and the rest are thorough.
    """
    functions = {}
    for item in items:
        place = item.path.relative_to(TESTS).as_posix()
        for area, patterns in AREAS.items():
            if any(fnmatch(place, pattern) for pattern in patterns):
                item.add_marker(area)
        if marker := item.get_closest_marker("sample"):
            functions.setdefault(item.nodeid.partition("[")[0], (marker.args, []))[1].append(item)
    for (fast, *slow), variants in functions.values():
        others = _without(variants, fast, pytest.mark.slow)
        _without(others, *(slow or [len(others)]), pytest.mark.thorough)
    for item in items:
        if item.get_closest_marker("thorough"):
            item.add_marker(pytest.mark.slow)


def pytest_collection_finish():
    """Exclude the million objects of imports and tests from garbage collection, which saves a tenth of the time."""
    gc.freeze()
    gc.set_threshold(10_000, 10, 10)


def pytest_sessionfinish():
    """Include the objects in garbage collection again; otherwise libraries report leaks at exit."""
    gc.unfreeze()


def pytest_terminal_summary(terminalreporter):
    """Print the seconds and tests of each folder, and the lines of tests, if five or more folders ran."""
    reports = [
        report for reports in terminalreporter.stats.values() for report in reports if hasattr(report, "duration")
    ]
    parts = {}
    for report in reports:
        part = report.nodeid.removeprefix("tests/").partition("/")[0]
        seconds, tests = parts.get(part, (0, 0))
        parts[part] = seconds + report.duration, tests + (report.when == "call")
    if len(parts) < 5:
        return
    terminalreporter.section("seconds and tests of each folder")
    for part, (seconds, tests) in sorted(parts.items(), key=lambda entry: -entry[1][0]):
        terminalreporter.line(f"{seconds:7.0f} s  {tests:5}  {part}")
    terminalreporter.line(budget.sentence(*budget.counted()))


def _without(items, count, marker):
    """Mark all but `count` evenly spread items, and return the marked items."""
    spread = {round(index * (len(items) - 1) / max(count - 1, 1)) for index in range(count)}
    others = [item for index, item in enumerate(items) if index not in spread]
    for item in others:
        item.add_marker(marker)
    return others


# Calls log the lines that commands print, so tests read them in the same stream.
LOGGER.propagate, LOGGER.handlers = False, [ShownLines()]

# Use the same examples in every run, so that a failure is caused by a change and not by chance.
# Do not search for explanations of a failure: they take a minute, and list lines of NumPy.
PHASES = set(hypothesis.Phase) - {hypothesis.Phase.explain}
hypothesis.settings.register_profile("same", derandomize=True, deadline=None, phases=PHASES)
hypothesis.settings.load_profile("same")


@pytest.fixture(scope="session", autouse=True)
def own_caches(tmp_path_factory):
    """Use separate caches in all tests and fixtures.

    `datasets` reads its environment when it is imported, so its settings are changed directly.
    """
    folder = tmp_path_factory.mktemp("caches")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SALIENCY_BENCH_CACHE", str(folder / "saliency-bench"))
        patch.setenv("HF_DATASETS_CACHE", str(folder / "datasets"))
        if "datasets" in sys.modules:
            patch.setattr("datasets.config.HF_DATASETS_CACHE", folder / "datasets")
        yield


@pytest.fixture(autouse=True)
def seeded():
    if "torch" in sys.modules:
        # `torch.manual_seed` would also format a stack trace for the GPUs.
        sys.modules["torch"].default_generator.manual_seed(0)


@pytest.fixture(scope="session")
def shapes(tmp_path_factory):
    """Build a small shapes-xai folder with 240 images of 32 pixels."""
    from saliency_bench import build

    return build("shapes-xai", tmp_path_factory.mktemp("data") / "shapes", size=32, count=240, progress=False)


@pytest.fixture(scope="session")
def resnet(tmp_path_factory):
    """Write a checkpoint folder of a tiny ResNet with random weights and the class names of shapes-xai."""
    from checkpoints import small_checkpoint

    from saliency_bench import registry

    names = registry.load("hub_builders", "shapes-xai").OBJECTS
    return small_checkpoint(tmp_path_factory.mktemp("models") / "tiny", names)


SMALL = {
    "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24,
    "image_size": 32, "patch_size": 8, "num_labels": 5,
}  # fmt: skip


class _Transformers:
    """Proxy that imports the library transformers on first use."""

    def __getattr__(self, name):
        import transformers

        return getattr(transformers, name)


hf = _Transformers()


def _torchvision():
    from torchvision.models import VisionTransformer

    return VisionTransformer(32, 8, 2, 2, 16, 24, num_classes=5)


def _timm(architecture="vit_small_patch16_224", **options):
    small = {"img_size": 32, "patch_size": 8, "embed_dim": 16, "depth": 2, "num_heads": 2}
    config = hf.TimmWrapperConfig(architecture=architecture, num_labels=5, model_args=small | options)
    return hf.TimmWrapperForImageClassification(config)


TRANSFORMERS = {
    "vit": lambda: hf.ViTForImageClassification(hf.ViTConfig(**SMALL)),
    "vit eager": lambda: hf.ViTForImageClassification(hf.ViTConfig(**SMALL, attn_implementation="eager")),
    "deit": lambda: hf.DeiTForImageClassification(hf.DeiTConfig(**SMALL)),
    "distilled deit": lambda: hf.DeiTForImageClassificationWithTeacher(hf.DeiTConfig(**SMALL)),
    "dinov2 with registers": lambda: hf.Dinov2WithRegistersForImageClassification(
        hf.Dinov2WithRegistersConfig(**SMALL)
    ),
    "beit": lambda: hf.BeitForImageClassification(hf.BeitConfig(**SMALL, use_relative_position_bias=True)),
    "timm": _timm,
    "timm, distilled": lambda: _timm("deit_small_distilled_patch16_224"),
    "timm, registers": lambda: _timm(reg_tokens=4, dynamic_img_size=True),
    "timm, averaged": lambda: _timm(global_pool="avg"),
    "timm, registers and no class token": lambda: _timm(
        reg_tokens=4, class_token=False, no_embed_class=True, global_pool="avg", dynamic_img_size=True
    ),
    "torchvision": _torchvision,
}


@pytest.fixture(scope="session")
def vision_transformer():
    """Return vision_transformer(name), which builds a random network of two blocks for 32 x 32 pixels and 5 classes."""
    import torch

    def make(name):
        torch.manual_seed(0)
        network = TRANSFORMERS[name]().eval()
        for parameter in network.parameters():
            # Larger than the initial weights of a training, with which attention is nearly uniform.
            if parameter.ndim > 1:
                torch.nn.init.normal_(parameter, std=0.25)
        return network

    make.names = list(TRANSFORMERS)
    return make
