"""Check the required parts of items in plugin folders without running them, with one sentence per missing part.

`missing(kind, name)` lists the missing parts of an item and where to add them. The contract test of each folder fails
once for an incomplete item and runs all other tests on `complete` items, so one unfinished file does not stop the tests
of other files.
"""

import ast
import inspect
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from math import inf
from pathlib import Path
from types import ModuleType
from typing import get_type_hints

import pytest
import yaml

from saliency_bench import options, registry
from saliency_bench.bound_explainer import Explainer, load_explainer
from saliency_bench.bound_metric import Metric, load_metric
from saliency_bench.declarations import NETWORK
from saliency_bench.errors import UserError
from saliency_bench.publishing.vendoring import DECLARED

SECTIONS = ("Metric description", "How to use", "Inputs", "Output values", "Edge cases", "Limitations")
FRONT = {"title", "emoji", "colorFrom", "colorTo", "sdk", "sdk_version", "app_file", "pinned", "tags"}
DATASET = {"VERSION": str, "TITLE": str, "LICENSE": str, "REDISTRIBUTE": bool, "CITATION": str, "RULE": str,
           "PAPER_COUNTS": dict, "ANNOTATORS": tuple, "SOURCES": tuple}  # fmt: skip
EXPLAINER = {
    "version": "version=1, and raise it whenever a map changes",
    "needs": f"what it needs of a network, in the words {', '.join(NETWORK)}",
    "passes": "the forward passes for one image, a number or a function (options, height, width) -> number",
}
METRIC = {"version": "version=1, and raise it whenever a number changes", "higher_is_better": "the direction",
          "title": "its name on pages, in a few words a reader knows",
          "range": "(low, high) of its scores, or a function of {option: value}",
          "paper": "authors, title, year and address, or a BibTeX entry"}  # fmt: skip


def names(kind: str) -> list[str]:
    """Return all items of a folder, including metric folders without a main file, which are not discovered."""
    known = set(registry.names(kind))
    if kind == "metrics":
        places = (path for folder in registry.folders(kind) for path in folder.iterdir() if path.is_dir())
        known |= {path.name for path in places if not path.name.startswith(("_", "."))}
    return sorted(known)


def complete(kind: str) -> list[str]:
    return [name for name in names(kind) if not missing(kind, name)]


def examples() -> list[str]:
    """Return the example sources of all complete datasets, as listed by `_examples.names`: "gender-xai release" ..."""
    found = []
    for name in complete("hub_builders"):
        layouts = [key for key in dir(registry.load("hub_builders", name)) if key.startswith("example")]
        found += [f"{name} {key.removeprefix('example').removeprefix('_')}".strip() for key in sorted(layouts)]
    return found


@cache
def missing(kind: str, name: str) -> tuple[str, ...]:
    """Return sentences about the missing parts of this item and where to add them."""
    return tuple(CONTRACTS[kind](name))


def check(kind: str, name: str) -> None:
    """Fail with one line per missing part of this item."""
    if lacks := missing(kind, name):
        pytest.fail("\n".join(lacks), pytrace=False)


def variants(item: Explainer | Metric) -> Iterator[tuple[str, object, Explainer | Metric]]:
    """Yield (option, value, variant of the item) for up to three values of each option other than the default.

    Skip options that default to None or a list, and values that require other options.
    """
    load = load_metric if isinstance(item, Metric) else load_explainer
    for option, value in item.options:
        others = [other for other in options.choices(item.function, option) if other not in (value, None)]
        if isinstance(value, bool):
            others = [not value]
        elif isinstance(value, (int, float)) and not others:
            others = [value / 2 or 1.0 if isinstance(value, float) else value // 2 or value + 1]
        for other in others[:3]:
            with suppress(UserError):
                yield option, other, load(item.name, **dict(item.options) | {option: other})


def of_module(kind: str, name: str, lacks: Callable[[str, ModuleType, Path], Iterator[str]]) -> Iterator[str]:
    """Return the missing parts of an item that is a single module."""
    path, module = registry.files(kind)[name], imported(kind, name)
    if isinstance(module, str):
        yield f"{where(path)} cannot be imported: {module}"
        return
    yield from unfinished(path)
    yield from lacks(name, module, path)


def of_explainer(name: str) -> Iterator[str]:
    yield from of_module("explainers", name, explainer_lacks)


def explainer_lacks(name: str, module: ModuleType, path: Path) -> Iterator[str]:
    function = getattr(module, name, None)
    if not callable(function):
        yield f"{where(path)} has no function {name}(classifier, images, target) -> maps: add it"
        return
    if options.positional(function) != ("classifier", "images", "target"):
        yield f"{name} in {where(path)} must take (classifier, images, target, *, options): change its parameters"
    if not inspect.getdoc(function):
        yield f"{name} in {where(path)} has no docstring: say what its maps and options are"
    yield from of_options(name, function, path)
    if len((module.__doc__ or "").partition("\n")[0]) <= 10:
        yield f"{where(path)} has no docstring: its first line is what `saliency-bench list` shows"
    yield from undeclared(name, function, "@explainer", EXPLAINER, path)


def undeclared(name: str, function: Callable, decorator: str, keys: dict[str, str], path: Path) -> Iterator[str]:
    """Return the missing arguments of a function's decorator."""
    declaration = getattr(function, "declaration", None)
    if declaration is None:
        yield f"{name} in {where(path)} is not declared: write {decorator}({'=..., '.join(keys)}=...) above it"
        return
    for key, what in keys.items():
        if getattr(declaration, key) in ("", None, (-inf, inf)):
            yield f"{decorator} of {name} in {where(path)} has no {key}: add {what}"


def of_options(name: str, function: Callable, path: Path) -> Iterator[str]:
    hints, described = get_type_hints(function), options.meanings(function.__doc__ or "")
    for option, default in options.defaults(function).items():
        if option not in hints:
            yield f"option {option} of {name} in {where(path)} has no type: add it, so that other values are refused"
        elif isinstance(default, str) and default not in options.choices(function, option):
            yield f"option {option} of {name} in {where(path)} accepts any text: list the valid texts in Literal[...]"
        if option not in described:
            yield f"option {option} of {name} in {where(path)} is not described: add a line under Args in its docstring"


def of_metric(name: str) -> Iterator[str]:
    folder = Path(registry.folders("metrics")[0], name)
    for file, what in {
        "score.py": f"the function {name} and what is declared of it",
        f"{name}.py": "its module for evaluate, a class on one of the shells of scoring/evaluate_shell.py",
        "README.md": "its card",
        "requirements.txt": "the packages that its page on the Hub installs",
    }.items():
        if not (folder / file).is_file():
            yield f"{where(folder)} has no {file}: add {what}"
        else:
            yield from unfinished(folder / file)
    if (folder / f"{name}.py").is_file():
        yield from of_shell(folder / f"{name}.py")
    if (folder / "README.md").is_file():
        yield from of_card(folder / "README.md")
    if (folder / "score.py").is_file() and (folder / f"{name}.py").is_file():
        yield from of_score(name, folder / "score.py")


def of_score(name: str, path: Path) -> Iterator[str]:
    module = imported("metrics", name, "score")
    if isinstance(module, str):
        yield f"{where(path)} cannot be imported: {module}"
        return
    if not module.__doc__:
        yield f"{where(path)} has no docstring: its first line is what `saliency-bench list` shows"
    function = getattr(module, name, None)
    if not callable(function):
        yield f"{where(path)} has no function {name}: add it"
        return
    yield from of_options(name, function, path)
    yield from undeclared(name, function, "@metric", METRIC, path)
    if "\nExample" not in inspect.cleandoc(function.__doc__ or ""):
        yield f"the docstring of {name} in {where(path)} has no example: work one out by hand on 4 x 4 maps"


def of_shell(path: Path) -> Iterator[str]:
    classes = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.ClassDef)]
    if not classes:
        yield f"{where(path)} has no class: add one on a shell of scoring/evaluate_shell.py and evaluate.Metric"
    elif f'"""{DECLARED}"""' not in path.read_text():
        yield f'the docstring of {classes[0].name} in {where(path)} is not """{DECLARED}""", which publishing replaces'


def of_card(path: Path) -> Iterator[str]:
    parts = path.read_text().split("---\n", 2)
    if len(parts) < 3 or parts[0]:
        yield f"{where(path)} does not begin with YAML between two lines ---: add it"
        return
    try:
        front = yaml.safe_load(parts[1])
    except yaml.YAMLError as error:
        yield f"the YAML of {where(path)} cannot be read: {' '.join(str(error).split())}"
        return
    if lacking := FRONT - set(front):
        yield f"the YAML of {where(path)} lacks {', '.join(sorted(lacking))}: add it"
    if lacking := [section for section in SECTIONS if f"# {section}\n" not in parts[2]]:
        yield f"{where(path)} has no section {', '.join(lacking)}: add it"


def of_dataset(name: str) -> Iterator[str]:
    yield from of_module("hub_builders", name, dataset_lacks)


def dataset_lacks(name: str, module: ModuleType, path: Path) -> Iterator[str]:
    if not module.__doc__:
        yield f"{where(path)} has no docstring: its first line is what `saliency-bench list` shows"
    yield from constants(module, DATASET, path)
    if hasattr(module, "LICENSE") and hasattr(module, "TERMS") != (module.LICENSE == "other"):
        yield f'{where(path)}: TERMS = (name, address) goes with LICENSE = "other" and with no other licence'
    for function, what in {
        "features": "the columns, {column: feature}, with `label`",
        "samples": "a generator (source, log, *, options) that yields a Job for each image",
    }.items():
        if not callable(getattr(module, function, None)):
            yield f"{where(path)} has no {function}: add {what}"
    if not getattr(module, "EMBEDDED", False):
        if not getattr(module, "DERIVED", False) and not any(key.startswith("example") for key in dir(module)):
            yield (
                f"{where(path)} has no example(folder, count, side): add it; it writes a small source in the raw "
                "layout, which the tests and the page of samples build"
            )
        if "Source" not in (module.__doc__ or ""):
            yield f"the docstring of {where(path)} does not say what the source is: add a paragraph 'Source: ...'"


def of_command(name: str) -> Iterator[str]:
    yield from of_module("push_scripts", name, command_lacks)


def command_lacks(name: str, module: ModuleType, path: Path) -> Iterator[str]:
    about, _, rest = (module.__doc__ or "").partition("\n\n")
    if not about or "\n" in about:
        yield f"the docstring of {where(path)} does not begin with one line and an empty one: add what the command does"
    if f"saliency-bench {name}" not in rest.partition("example:\n")[2]:
        yield f"the docstring of {where(path)} has no example: add a line 'example:' and below it a line that works"
    for function, what in {"arguments": "(parser), which adds its options", "main": "(args), which does it"}.items():
        if not callable(getattr(module, function, None)):
            yield f"{where(path)} has no {function}: add {function}{what}"
    if "_shared.output(" not in path.read_text(encoding="utf-8"):
        yield f"{where(path)} takes no --json and no --quiet: call _shared.output(parser) in arguments"


def constants(module: ModuleType, kinds: dict[str, type], path: Path) -> Iterator[str]:
    for name, kind in kinds.items():
        if not hasattr(module, name):
            yield f"{where(path)} has no {name}: add it ({kind.__name__})"
        elif not isinstance(getattr(module, name), kind):
            yield f"{name} in {where(path)} is no {kind.__name__}: change it"


def unfinished(path: Path) -> Iterator[str]:
    """Return the lines of a skeleton that have not been replaced yet."""
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if re.search(r"TODO(?=[:\"\]]|$)", line):
            yield f"{where(path)} line {number} still contains a TODO: {line.strip()}"


def imported(kind: str, name: str, part: str = "") -> ModuleType | str:
    """Return the module, or the reason why it cannot be imported."""
    try:
        return registry.load(kind, name, part)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def where(path: Path) -> str:
    root = Path(__file__).parents[2]
    return (path.relative_to(root) if path.is_relative_to(root) else path).as_posix()


CONTRACTS: dict[str, Callable[[str], Iterator[str]]] = {
    "explainers": of_explainer,
    "metrics": of_metric,
    "hub_builders": of_dataset,
    "push_scripts": of_command,
}
