"""Tests of the version of a user's function, which depends on all code that the function uses."""

import importlib
import os
import re
import subprocess
import sys
import textwrap
from dataclasses import dataclass, field
from functools import lru_cache, partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import saliency_bench as sb
from saliency_bench.bound_explainer import as_explainer
from saliency_bench.utils.source_code import code_hash, package_code


def version(function):
    found = code_hash(function)
    assert not found.unhashable
    return found.version


FILES = {
    "own_main": """
        import logging
        import own_helpers
        from own_helpers import direct
        from own_package import inner
        import numpy as np, torch

        logger = logging.getLogger(__name__)
        TABLE = {"a": [1, 2]}
        MASK = torch.zeros(2000)
        UNUSED = 1

        class Mine(own_helpers.Base):
            def __call__(self, classifier, images, target):
                return self.value(images)

        def mine(classifier, images, target):
            from own_late import late
            import own_package.deep as deep
            logger.info("called")
            images = images * TABLE["a"][0] + MASK.sum() + inner.value(images) + late(images) + deep.VALUE
            return own_helpers.through(images) + direct(images)

        mine_as_object = Mine()
        """,
    "own_helpers": """
        from own_constants import FACTOR

        class Base:
            def value(self, images):
                return images.mean(1)

        def through(images):
            return images.mean(1) * FACTOR

        def direct(images):
            return images.amax(1)

        def unrelated():
            return 5
        """,
    "own_constants": "FACTOR = 2",
    "own_late": "def late(images):\n    return images.std(1)",
    "own_package/__init__": "",
    "own_package/inner": "def value(images):\n    return images.sum(1)",
    "own_package/deep": "VALUE = 3",
}


def loaded(folder, monkeypatch, changed=("", "", "")):
    """Return the functions of these files after replacing a string in one of them, as in another Python process."""
    file, old, new = changed
    for name, text in FILES.items():
        text = textwrap.dedent(text)
        assert name != file or old in text
        path = folder / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.replace(old, new) if name == file else text)
    for name in [name for name in sys.modules if name.startswith("own_")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    importlib.invalidate_caches()
    return importlib.import_module("own_main")


@pytest.fixture
def first(tmp_path, monkeypatch):
    return version(loaded(tmp_path / "first", monkeypatch).mine)


CHANGES = {
    "its own code": ("own_main", "+ direct(images)", "- direct(images)"),
    "a mutable global": ("own_main", "[1, 2]", "[3, 2]"),
    "a tensor, in the middle": ("own_main", "torch.zeros(2000)", "torch.arange(2000)"),
    "a constant two modules away": ("own_constants", "2", "4"),
    "a module imported inside": ("own_late", "std", "var"),
    "a module of a package": ("own_package/inner", "sum", "prod"),
    "a module imported inside under another name": ("own_package/deep", "3", "4"),
    # Files are hashed completely, because a function may use any part of them.
    "what is not used": ("own_helpers", "return 5", "return 6"),
    "a global that is not used": ("own_main", "UNUSED = 1", "UNUSED = 2"),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_version_covers_all_files_used_by_function(change, first, tmp_path, monkeypatch):
    assert version(loaded(tmp_path / "changed", monkeypatch, change).mine) != first


@pytest.mark.parametrize("change", [("", "", ""), ("own_main", "def mine(", "# of mine\ndef mine(")])
def test_version_does_not_depend_on_folder(change, first, tmp_path, monkeypatch):
    assert version(loaded(tmp_path / "same", monkeypatch, change).mine) == first


def test_version_covers_globals_that_change_while_the_program_runs(tmp_path, monkeypatch):
    """Change a global in the module of the function, and a global in the module of a helper that it calls."""
    module = loaded(tmp_path / "first", monkeypatch)
    first = version(module.mine)
    module.TABLE["a"] = [5]
    second = version(module.mine)
    assert second != first
    monkeypatch.setattr(module, "direct", direct := sys.modules["own_helpers"].through)
    assert version(module.mine) != second
    third = version(module.mine)
    monkeypatch.setitem(direct.__globals__, "FACTOR", 3)
    assert version(module.mine) != third


def test_version_covers_inherited_methods(tmp_path, monkeypatch):
    first = version(loaded(tmp_path / "first", monkeypatch).mine_as_object)
    assert version(loaded(tmp_path / "same", monkeypatch).mine_as_object) == first
    change = ("own_helpers", "return images.mean(1)\n\ndef", "return -images.mean(1)\n\ndef")
    assert version(loaded(tmp_path / "changed", monkeypatch, change).mine_as_object) != first


def test_file_edited_after_import_is_unhashable(tmp_path, monkeypatch):
    """Test a module that was edited after its import, for example in a notebook."""
    module = loaded(tmp_path / "first", monkeypatch)
    before, path = version(module.mine), tmp_path / "first" / "own_helpers.py"
    path.write_text(path.read_text().replace("images.mean(1) * FACTOR", "images.amax(1) * FACTOR"))
    edited = code_hash(module.mine)
    assert "own_helpers.py was edited after it was imported; import it again" in edited.unhashable
    assert edited.version != code_hash(module.mine).version
    importlib.reload(sys.modules["own_helpers"])
    importlib.reload(module)
    assert version(module.mine) != before


@dataclass
class Settings:
    power: int = 1
    held: list = field(default_factory=list)


def holding(thing):
    def held(classifier, images, target):
        return images.mean(1) * len(str(thing))

    return held


def defaulting(thing):
    def held(classifier, images, target, *, given=thing):
        return images.mean(1) * len(str(given))

    return held


LONG = np.zeros(5000)
MIDDLE = LONG.copy()
MIDDLE[2500] = 1
PAIRS = {
    "arrays": (LONG, MIDDLE),
    "tensors": (torch.from_numpy(LONG), torch.from_numpy(MIDDLE)),
    "integers and floats": (1, 1.0),
    "types of arrays": (LONG, LONG.astype(np.float32)),
    "namespaces": (SimpleNamespace(a=1), SimpleNamespace(a=2)),
    "dataclasses": (Settings(1), Settings(2)),
    "objects inside of objects": (Settings(held=[{"x": {1, 2}}]), Settings(held=[{"x": {1, 3}}])),
    "networks": (torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)),
    "functions": (holding(1), holding(2)),
    "partial functions": (partial(holding, 1), partial(holding, 2)),
    "cached functions": (lru_cache(holding(1)), lru_cache(holding(2))),
    "wrapped functions": (torch.no_grad()(holding(1)), torch.no_grad()(holding(2))),
    "explainers": (sb.load_explainer("rise", masks=5), sb.load_explainer("rise", masks=6)),
    "classes": (type("A", (), {"x": 1}), type("A", (), {"x": 2})),
    "methods": ("a".join, "b".join),
    "dtypes": (torch.float32, torch.float64),
    "generators": (np.random.default_rng(1), np.random.default_rng(2)),
}


@pytest.mark.parametrize(("one", "other"), PAIRS.values(), ids=PAIRS)
def test_version_covers_values_stored_in_function(one, other):
    for way in (holding, defaulting, lambda thing: partial(holding(0), thing)):
        assert version(way(one)) == version(way(one)) != version(way(other))


@pytest.mark.parametrize("make", [lambda: SimpleNamespace(a=Plain()), lambda: Plain(), lambda: {"b", "a", "c"}])
def test_id_of_object_options_depends_on_content(make):
    """Test options whose text contains an address, or depends on the order of a set in the process."""
    one, other = (as_explainer(way(make())) for way in (defaulting, defaulting))
    assert one.identity == other.identity
    assert " at 0x" not in str(one.identity)


def test_option_text_does_not_depend_on_set_order():
    code = "from saliency_bench import options; print(options.text((('a', set('abcdef')),)))"
    found = {subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True,
                            env={**os.environ, "PYTHONHASHSEED": seed}).stdout for seed in "12"}  # fmt: skip
    assert len(found) == 1


class Plain:
    pass


class Keeping:
    shared = 1

    def __init__(self, **held):
        vars(self).update(held)

    @property
    def doubled(self):
        return 2 * self.shared

    def __call__(self, classifier, images, target):
        return images.mean(1) * self.doubled


def test_version_covers_attributes_and_handles_cycles():
    assert version(Keeping(a=1)) == version(Keeping(a=1)) != version(Keeping(a=2))
    assert version(Keeping(a=1).__call__) != version(Keeping(a=2).__call__)
    ring = [1]
    ring.append(ring)
    space = SimpleNamespace(ring=ring)
    space.own = space
    assert version(holding(space)) == version(holding(space))


LETTERS = (letter for letter in "ab")


def drawing(classifier, images, target):
    next(LETTERS, None)
    return images.mean(1)


@pytest.mark.parametrize(("function", "words"),
                         [(holding(SimpleNamespace(inner=(letter for letter in "ab"))), "generator"),
                          (holding(torch.eye(2).to_sparse()), "Sparse")])  # fmt: skip
def test_unhashable_function_gets_new_version_each_time(function, words):
    found = [code_hash(function) for _ in range(2)]
    assert found[0].version != found[1].version
    assert len(found[0].version) == 16
    assert words in found[0].unhashable


def test_run_warns_once_about_unhashable_function(shapes, resnet, tmp_path, capsys):
    settings = {"dataset": str(shapes), "model": str(resnet), "metrics": ["saliency_miou"], "limit": 4,
                "out": tmp_path / "run", "device": "cpu", "progress": False}  # fmt: skip
    first = sb.run(explainers=[drawing], **settings).summary["cells"]
    lines = [line for line in capsys.readouterr().err.splitlines() if "drawing" in line]
    assert len(lines) == 1
    assert "drawing cannot be hashed (TypeError: cannot pickle 'generator' object), so every run recomputes" in lines[0]
    again = sb.run(explainers=[drawing], **settings).summary
    assert len({cell["cell_id"] for cell in [*first, *again["cells"]]}) == 2
    assert "cannot be hashed (TypeError" in again["command"]


SCRIPT = """
import numpy as np, torch
from saliency_bench.utils.source_code import code_hash, package_code
NAMES = {"a", "b", "c", ("d", 1), frozenset({"x", "y"})}
class Mine:
    kinds = NAMES
    def __call__(self, classifier, images, target):
        return images.mean(1) if "a" in {"a", "b", "c"} else F(images)
def F(images):
    return [lambda: images.sum(1) for _ in NAMES][0]()
print(code_hash(Mine()))
"""


@pytest.mark.thorough
def test_version_is_equal_in_every_process(tmp_path):
    """Test sets, whose order differs between processes, and code that is compiled or read from a cache."""
    (tmp_path / "script.py").write_text(SCRIPT)
    ways = [["script.py"], ["script.py"], ["-c", "import script"], ["-c", "import script"]]
    found = [
        subprocess.run([sys.executable, *way], cwd=tmp_path, capture_output=True, text=True, check=True,
                       env={**os.environ, "PYTHONHASHSEED": str(seed)}).stdout
        for seed, way in enumerate(ways)
    ]  # fmt: skip
    assert (found[0], found[2]) == (found[1], found[3])
    assert all("unhashable=''" in line for line in found)


RECURSIVE = """
from saliency_bench import load_explainer
FACTOR = 3
UNUSED = 1
def even(n): return n == 0 or odd(n - 1)
def odd(n): return n != 0 and even(n - 1)
def closure():
    def counts(n): return n and counts(n - 1)
    return counts
counts = closure()
def mine(classifier, images, target):
    class Inner:
        factor = FACTOR
    return load_explainer("gradient")(classifier, images, target) * even(2) * counts(1) * Inner.factor
"""


def test_version_covers_functions_that_call_each_other():
    """Hash functions of a script. dill never finishes its search for the globals of functions that call each other."""

    def changed(old="", new=""):
        script = {"__name__": "__main__"}
        exec(RECURSIVE.replace(old, new) if old else RECURSIVE, script)
        return version(script["mine"])

    first = changed()
    assert first == changed() == changed("UNUSED = 1", "UNUSED = 2")
    for change in (("FACTOR = 3", "FACTOR = 4"), ("n != 0", "n != 1"), ("n and counts", "n or counts")):
        assert changed(*change) != first, change


def test_different_library_calls_change_version():
    one, other = lambda c, images, t: F.relu(images) + np.pi, lambda c, images, t: F.gelu(images) + np.pi
    assert version(one) != version(other)
    assert as_explainer(one).version == version(one)
    other._torchdynamo_orig_callable = one  # as `torch.compile` does
    assert version(other) == version(one)


def test_plugin_version_follows_imports_within_package(tmp_path, monkeypatch):
    package = tmp_path / "followed_package"
    package.mkdir()
    files = {
        "__init__": "", "item": "from . import near\nfrom followed_package.near import level\nimport json\n",
        "near": "def level():\n    from followed_package import far\n    return far.LEVEL\n", "far": "LEVEL = 1\n",
        "other": "LEVEL = 1\n",
    }  # fmt: skip
    for name, text in files.items():
        (package / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("followed_package.item")
    before = package_code("followed_package.item")
    assert re.fullmatch("[0-9a-f]{16}", before)
    (package / "other.py").write_text("LEVEL = 2\n")
    assert package_code("followed_package.item") == before
    for name in ("item", "near", "far"):
        (package / f"{name}.py").write_text(files[name] + "# Edited.\n")
        assert package_code("followed_package.item") != before
        (package / f"{name}.py").write_text(files[name])
    assert package_code("followed_package.item") == before
    for name in [name for name in sys.modules if name.startswith("followed_package")]:
        del sys.modules[name]
