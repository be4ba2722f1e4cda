"""The order of the core's layers: a file imports from the layers above its own, and its own folder."""

import ast
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CORE = ROOT / "saliency_bench"
# From the top down. A line of files may import each other; so may the files of a folder.
LAYERS = (
    ("errors", "types", "reasons"),
    ("utils",),
    (
        "options",
        "registry",
        "own_files",
        "maps",
        "target_weights",
        "spec",
        "displays",
        "settings",
        "bound_explainer",
        "declarations",
        "bound_metric",
    ),
    ("hub",),
    ("targets",),
    ("classifiers",),
    ("data",),
    ("map_sources",),
    ("scoring",),
    ("results",),
    ("analysis",),
    ("reports",),
    ("studies",),
    ("engine",),
    ("publishing",),
    ("leaderboard",),
)
FACADE = ("__init__", "__main__", "callbacks", "cli", "completion", "composing", "panels", "parsing", "peers",
          "terminal")  # fmt: skip
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
FILES = sorted(path for path in CORE.rglob("*.py") if path.relative_to(CORE).parts[0].removesuffix(".py") not in FACADE)


def place_of(path: Path) -> str:
    return path.relative_to(CORE).parts[0].removesuffix(".py")


def imports_of(path: Path) -> set[str]:
    """Every name of ours that a file imports, also inside functions: "data.jobs", "data.jobs.Job" ..."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.Attribute) and ast.unparse(node.value) == "saliency_bench":
            names |= {ast.unparse(node)}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.relative_to(ROOT)}: relative import"
            names |= {str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)}
    return {name.removeprefix("saliency_bench.") for name in names if name.startswith("saliency_bench.")}


def test_every_place_of_the_core_has_a_layer_and_every_layer_a_place():
    places = {place_of(path) for path in FILES}
    assert sorted(places - set(LEVEL)) == [], "add these to LAYERS here, and to the table in CONTRIBUTING.md"
    assert sorted(set(LEVEL) - places) == [], "these are in LAYERS, but not in saliency_bench/"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(CORE).as_posix())
def test_imports_run_from_the_layers_above(path):
    own = place_of(path)
    places = {name.partition(".")[0] for name in imports_of(path)} - {"__version__", "__file__"}
    # What has no level is the outside (facade, command line, plugins), which nothing in the core imports.
    below = sorted(place for place in places if LEVEL.get(place, len(LAYERS)) > LEVEL[own])
    assert below == [], f"{path.relative_to(ROOT)} is in {own}, which may not import {', '.join(below)}"


def test_imports_are_seen():
    assert {"compute.run", "spec.RunSpec", "utils.files.write_json"} <= imports_of(CORE / "leaderboard" / "template.py")


@pytest.mark.parametrize("folder", sorted({path.parent for path in FILES} - {CORE}), ids=lambda folder: folder.name)
def test_a_folder_says_what_lives_in_it(folder):
    assert (ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) or "").partition("\n")[0]


def test_no_module_imports_itself_in_a_circle():
    modules = {".".join(path.relative_to(CORE).with_suffix("").parts): path for path in FILES}
    edges = {name: sorted(imports_of(path) & set(modules)) for name, path in modules.items()}
    assert circle_in(edges) == []
    assert set(circle_in({"a": ["b"], "b": ["c"], "c": ["b"]})) == {"b", "c"}


def circle_in(edges: dict[str, list[str]]) -> list[str]:
    """The names of a circle, the first one at both ends; [] if there is none."""
    try:
        TopologicalSorter(edges).prepare()
    except CycleError as error:
        return error.args[1]
    return []
