"""The order of the core's layers: a file imports from the layers above its own, and its own folder."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CORE = ROOT / "saliency_bench"
# From the top down. A line of files may import each other; so may the files of a folder.
LAYERS = (
    ("errors", "types", "reasons"),
    ("utils",),
    ("options", "registry", "maps", "target", "spec", "explainer", "metric"),
    ("hub",),
    ("targets",),
    ("classifiers",),
    ("data",),
    ("explaining",),
    ("scoring",),
    ("results",),
    ("analysis",),
    ("reports",),
    ("studies",),
    ("engine",),
    ("publishing",),
    ("leaderboard",),
)
FACADE = ("__init__", "__main__", "cli", "composing")
LARGEST = 14
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
FILES = sorted(path for path in CORE.rglob("*.py") if path.relative_to(CORE).parts[0].removesuffix(".py") not in FACADE)


def place_of(path: Path) -> str:
    return path.relative_to(CORE).parts[0].removesuffix(".py")


def imported_places(path: Path) -> set[str]:
    """The folders or top-level files of the core that a file imports; what only types need does not run."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    idle = {inner for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
            for inner in ast.walk(node)}  # fmt: skip
    found: set[str] = set()
    for node in ast.walk(tree):
        if node in idle or not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith("saliency_bench"):
            continue
        below = (node.module or "").split(".")[1:]
        found |= {below[0]} if below else {alias.name for alias in node.names}
    return found - {"__version__"}


def test_every_place_of_the_core_has_a_layer():
    assert {place_of(path) for path in FILES} <= set(LEVEL)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(CORE).as_posix())
def test_imports_run_from_the_layers_above(path):
    own = place_of(path)
    # Two folders of one line may not import each other, two files of one line may.
    below = [place for place in imported_places(path) if LEVEL[place] > LEVEL[own]]
    assert below == [], f"{path.relative_to(ROOT)} is in {own}, which may not import {', '.join(below)}"


@pytest.mark.parametrize("folder", sorted({path.parent for path in FILES} - {CORE}), ids=lambda folder: folder.name)
def test_a_folder_is_small_and_says_what_lives_in_it(folder):
    assert len([path for path in folder.glob("*.py") if path.stem != "__init__"]) <= LARGEST
    assert (ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) or "").partition("\n")[0]


def test_no_module_imports_itself_in_a_circle():
    """Not even by an import inside a function: the way through the code is a tree."""
    modules = {path.relative_to(ROOT).with_suffix("").as_posix().replace("/", "."): path for path in FILES}
    edges = {name: _modules_imported(path) & set(modules) for name, path in modules.items()}
    seen: dict[str, int] = {}

    def visit(name: str, way: tuple[str, ...]) -> None:
        assert name not in way, " -> ".join((*way[way.index(name) :], name))
        if name not in seen:
            for other in sorted(edges[name]):
                visit(other, (*way, name))
            seen[name] = 1

    for name in sorted(modules):
        visit(name, ())


def _modules_imported(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    idle = {inner for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
            for inner in ast.walk(node)}  # fmt: skip
    return {
        name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node not in idle
        for name in (node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names))
    }
