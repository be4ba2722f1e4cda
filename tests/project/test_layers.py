"""Tests of import rules: files import only from lower layers and their own part. Applications are independent."""

import ast
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[2]
CORE = ROOT / "saliency_bench"
# Parts in the order of imports. Files and folders of one line may import each other, except for HOUSES, which are
# independent applications.
VOCABULARY = (
    ("errors", "types", "score_notes"),
    ("utils",),
    ("options", "registry", "user_files", "maps", "target_weights", "spec", "settings", "notebook_views",
     "declarations", "bound_explainer", "bound_metric"),
    ("hub",),
    ("data",),
)  # fmt: skip
READ = (("read", "read/statistics"), ("read/analysis",), ("read/finished_run", "read/data_frames"), ("read/report",))
COMPUTE = (("compute/targets",), ("compute/classifiers",), ("compute/maps",), ("compute/scoring",),
           ("compute", "compute/loading", "compute/retraining"))  # fmt: skip
HOUSES = ("recipes", "board", "studies", "publishing")
LAYERS = (*VOCABULARY, *READ, *COMPUTE, HOUSES)
# Modules of `compute` that HOUSES may use besides the public API of `saliency_bench`. Only `recipes` may use others.
USED = {
    "classifiers.own_networks", "loaded", "loading.load", "loading.table", "precomputed", "preflight",
    "python_objects", "reading", "run", "targets.rules", "classifiers.loading",
}  # fmt: skip
FACADE = ("__init__", "__main__", "arguments", "callbacks", "cli", "completion", "composing", "panels", "peers",
          "terminal")  # fmt: skip
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
FILES = sorted(path for path in CORE.rglob("*.py") if path.relative_to(CORE).parts[0].removesuffix(".py") not in FACADE)


def place_of(module: str) -> str:
    """Return the most specific part that contains a dotted name, or the first word of the name if there is none."""
    words = module.split(".")
    parts = ["/".join(words[:count]) for count in range(len(words), 0, -1)]
    return next((part for part in parts if part in LEVEL), words[0])


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(CORE).with_suffix("").parts).removesuffix(".__init__")


@cache
def imports_of(path: Path) -> set[str]:
    """Return all names of this project that a file imports, including in functions: "data.jobs", "data.jobs.Job" ...

    Imports for type annotations alone (`if TYPE_CHECKING`) are ignored, because they import nothing when the code runs.
    """
    tree, names = ast.parse(path.read_text(encoding="utf-8")), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            node.body = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.Attribute) and ast.unparse(node.value) == "saliency_bench":
            names |= {ast.unparse(node)}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 or not path.is_relative_to(CORE), f"{path.relative_to(ROOT)}: relative import"
            assert node.level < 2, f"{path.relative_to(ROOT)}: import from a folder above"
            names |= {str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)}
    return {name.removeprefix("saliency_bench.") for name in names if name.startswith("saliency_bench.")}


def test_parts_and_files_match():
    places = {place_of(module_of(path)) for path in FILES}
    assert sorted(places - set(LEVEL)) == [], "add these to the parts here, and to the table in CONTRIBUTING.md"
    assert sorted(set(LEVEL) - places) == [], "these are parts here, but not in saliency_bench/"


def test_files_import_only_earlier_parts():
    wrong = []
    for path in FILES:
        place = place_of(module_of(path))
        # `from saliency_bench.compute import maps` imports the second name.
        imported = {name for name in imports_of(path) if name not in ("__version__", "__file__", "compute")}
        # Modules without a level are the outer layer (facade, command line, plugins), which the core never imports.
        later = {name for name in imported if LEVEL.get(place_of(name), len(LAYERS)) > LEVEL[place]}
        if place in HOUSES:
            later |= {name for name in imported if place_of(name) in HOUSES and place_of(name) != place}
        wrong += [f"{path.relative_to(ROOT)} is in {place}, which may not import {name}" for name in sorted(later)]
    assert wrong == []


def test_applications_use_few_modules_of_compute():
    modules = {module_of(path) for path in (CORE / "compute").rglob("*.py")}
    files = [path for house in HOUSES if house != "recipes" for path in (CORE / house).rglob("*.py")]
    used = {name.removeprefix("compute.") for path in files for name in imports_of(path) & modules} - {"compute"}
    assert sorted(used - USED) == [], "use what `saliency_bench` exports, or name these modules here"
    assert sorted(USED - used) == []


def test_imports_of_finds_nested_imports():
    assert {"compute.run", "spec.RunSpec", "utils.files.write_json"} <= imports_of(CORE / "board" / "template.py")


def test_modules_have_no_import_cycles():
    modules = {module_of(path): path for path in FILES}
    edges = {name: sorted(imports_of(path) & set(modules)) for name, path in modules.items()}
    assert (circle_in(edges), set(circle_in({"a": ["b"], "b": ["c"], "c": ["b"]}))) == ([], {"b", "c"})


def circle_in(edges: dict[str, list[str]]) -> list[str]:
    """Return the names in an import cycle, with the first name at both ends; [] if there is none."""
    try:
        TopologicalSorter(edges).prepare()
    except CycleError as error:
        return error.args[1]
    return []
