"""Registry of the items in plugin folders (explainers, metrics, hub_builders, push_scripts ...), by file name.

An item is a file `NAME.py` or a folder `NAME/` that contains `NAME.py`. Names that begin with `_` are private to their
folder. Items are imported on first use, so a missing optional library only affects the items that need it.

Other installed packages can add items through entry points NAME = "package.module" in the groups
`saliency_bench.explainers`, `.metrics` and `.datasets`. Each module has the same structure as those in this package;
for a metric, it may also be a package folder. Suites are added through the group `saliency_bench.suites`, in which the
value of an entry point is a folder of YAML files.
"""

import ast
import os
import re
import signal
from collections.abc import Callable
from contextlib import nullcontext, suppress
from functools import cache, lru_cache
from importlib import import_module
from importlib.metadata import Distribution, EntryPoint, distributions, entry_points
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from saliency_bench.errors import UserError, described, no_exit, one_line, unknown
from saliency_bench.utils.messages import complain
from saliency_bench.utils.stand_ins import lacking, stand_ins

KINDS = {
    "explainers": "explainer",
    "metrics": "metric",
    "hub_builders": "dataset",
    "push_scripts": "command",
    "model_cards": "card",
    "spaces": "space",
    "suites": "suite",
}
HERE = Path(__file__).parent
# {kind: group of the entry points with which other packages add items}.
GROUPS = {
    "explainers": "saliency_bench.explainers",
    "metrics": "saliency_bench.metrics",
    "hub_builders": "saliency_bench.datasets",
    "suites": "saliency_bench.suites",
}
# Separators in the version of another package's item, such as "3 of their-package 1.2.0, code 5f0c2a1b3c4d5e6f".
OF, CODE = " of ", ", code "
DECLARED = ("explainers", "metrics")  # kinds whose functions have a declaration
PART = {"explainers": "", "metrics": "score"}  # file in an item's folder that contains its function
NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,99}", re.ASCII)
DASHED = ("hub_builders", "push_scripts")  # kinds whose public names have dashes: shapes-xai, install-metrics


def folders(kind: str) -> list[Path]:
    """Return the folders that contain the items of a kind."""
    spec = find_spec(f"saliency_bench.{kind}")
    inside = [] if spec is None else [Path(location) for location in spec.submodule_search_locations or ()]
    return inside + [place for place in _places(kind).values() if kind == "suites" and place.is_dir()]


def files(kind: str) -> dict[str, Path]:
    """Return {public name: main file} for all items of a kind.

    The items of this package come first, sorted by name, followed by those from other packages.
    """
    return _inside(kind, *folders(kind)) | _added(kind)


@cache
def _inside(kind: str, *of_kind: Path) -> dict[str, Path]:
    """Return {public name: main file} for the items in these folders, sorted by name."""
    items: dict[str, Path] = {}
    for folder in of_kind:
        for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
            inside = f"{entry.name}/{entry.name}.py" if entry.is_dir() else entry.name
            if inside.endswith(".py") and not inside.startswith(("_", ".")) and os.path.isfile(main := folder / inside):
                items[main.stem.replace("_", "-") if kind in DASHED else main.stem] = main
    return items


@cache
def _all_points() -> dict[str, list[EntryPoint]]:
    """Return {kind: entry points} for all installed packages. The packages are read only once for all kinds."""
    try:
        every = entry_points()
        return {kind: list(every.select(group=group)) for kind, group in GROUPS.items()}
    except Exception:  # the file of one package cannot be read; use the other packages
        points = _points_one_by_one()
        return {kind: [point for point in points if point.group == group] for kind, group in GROUPS.items()}


def _points_one_by_one() -> list[EntryPoint]:
    """Return the entry points of all packages. Print a warning for each package with unreadable entry points."""
    points: list[EntryPoint] = []
    names: set[str] = set()
    for package in distributions():
        try:
            name = package.metadata["Name"]
            if name not in names:  # if two packages share a name, Python imports the first
                points += package.entry_points
            names.add(name)
        except Exception as error:
            complain(f"the entry points of {_package(package)} cannot be read and are left out: {described(error)}")
    return points


@cache
def _points(kind: str) -> dict[str, EntryPoint]:
    """Return {name: entry point} for items from other packages.

    If several packages use the same name, the first of these packages counts.
    """
    points = _all_points().get(kind, [])
    known: dict[str, EntryPoint] = {}
    for point in sorted(points, key=_called):
        if not NAME.fullmatch(point.name):
            name = one_line(point.name, 60)
            rule = "a name consists of at most 100 letters, digits, '.', '_' and '-', and begins with a letter or digit"
            complain(f"{KINDS[kind]} {name} of {_called(point)} cannot be used: {rule}")
        elif (first := known.setdefault(point.name, point)) is not point and first.value != point.value:
            complain(
                f"{KINDS[kind]} {point.name} of {_called(point)} is left out: {_called(first)} has one with the same "
                "name"
            )
    return known


@cache
def _places(kind: str) -> dict[str, Path]:
    """Return {name: folder, or file without .py} for the modules of `_points`. Nothing is imported."""
    places: dict[str, Path] = {}
    for name, point in _points(kind).items():
        with suppress(Exception):  # the module name is invalid, or the module is not found
            package, *inside = point.module.split(".")
            spec = find_spec(package)
            roots = [] if spec is None else spec.submodule_search_locations or [str(spec.origin).removesuffix(".py")]
            for root in list(roots)[:1]:
                places[name] = Path(root, *inside)
    return places


def _added(kind: str) -> dict[str, Path]:
    """Return {name: main file} for the readable items from other packages."""
    return {name: main for name, main in _read_added(kind).items() if isinstance(main, Path) and kind != "suites"}


@cache
def _read_added(kind: str) -> dict[str, Path | str]:
    """Return {name: main file, or reason why it is unreadable} for items from other packages.

    For a suite, the folder is returned instead of a file.
    """
    items: dict[str, Path | str] = {}
    for name, point in _points(kind).items():
        place = _places(kind).get(name)
        if kind != "suites" and name in _inside(kind, *folders(kind)):
            complain(
                f"{KINDS[kind]} {name} of {_called(point)} cannot be used: saliency-bench has one with the same name"
            )
        elif place is None:
            items[name] = f"there is no module {one_line(point.value, 100)}"
        elif kind == "suites":
            items[name] = place if place.is_dir() else f"{point.value} is not a folder"
        else:
            items[name] = _main_file(place) or f"{point.value} is not a file"
    return items


def _main_file(place: Path) -> Path | str | None:
    """Return the main file of an item, or None if there is none. If a file is not valid Python, return the reason."""
    candidates = place / f"{place.name}.py", place / "score.py", place.with_suffix(".py")
    main = next(filter(Path.is_file, candidates), None)
    return main and (_unreadable(place, main) or main)


def _unreadable(place: Path, main: Path) -> str:
    """Return why a file of an item is not valid Python, including the file's path, or "" if all files are valid."""
    for path in sorted(place.glob("*.py")) if place.is_dir() else [main]:
        try:
            _parse(path)
        except (OSError, SyntaxError, ValueError) as error:
            why = described(error)
            return why if str(path) in why else f"{path}: {why}"
    return ""


def check_readable(kind: str, name: str) -> None:
    """Raise UserError if an item comes from another package and has unreadable files."""
    if isinstance(why := _read_added(kind).get(name), str):
        raise UserError(f"{KINDS[kind]} {name} of {distribution_of(kind, name)} cannot be used: {why}")


def unusable(kind: str) -> dict[str, str]:
    """Import the items from other packages. Return {name: reason} for those that cannot be read or imported.

    Items of this package are not checked.
    """
    reasons: dict[str, str] = {}
    for name in _read_added(kind):
        try:
            check_readable(kind, name)
            if kind in DECLARED:
                declaration_of(kind, name, function_of(kind, name, PART[kind]))
            elif kind != "suites":
                load(kind, name)
        except UserError as error:
            reasons[name] = str(error)
    return reasons


def usable_names(kind: str) -> list[str]:
    """Return the public names of a kind's importable items. For each item that cannot be imported, print a line."""
    broken = unusable(kind)
    for line in broken.values():
        complain(line)
    return [name for name in names(kind) if name not in broken]


def distribution_of(kind: str, name: str) -> str:
    """Return the name and version of the package that contains an item, as in "their-package 1.2.0".

    Return "" for this package.
    """
    return _called(_points(kind)[name]) if name in _read_added(kind) else ""


def _called(point: EntryPoint) -> str:
    return "" if point.dist is None else _package(point.dist)


def _package(package: Distribution) -> str:
    """Return a package's name and version. If both are unknown, return the name of its folder."""
    try:
        text = f"{package.metadata['Name'] or ''} {package.metadata['Version'] or ''}".strip()
    except Exception:  # its metadata cannot be read
        text = ""
    return one_line(text or Path(str(getattr(package, "_path", ""))).stem, 100)  # the folder is named after the package


def version_of(kind: str, name: str, version: int) -> int | str:
    """Return the version of an item as it is used in identities.

    For an item from another package, this version includes the name and version of the package and a hash of the item's
    source, because editing the source may change numbers even if the declared version stays the same.
    """
    if name not in _added(kind):
        return version
    return f"{version}{OF}{distribution_of(kind, name)}{CODE}{_code_of(_module_of(kind, name, PART[kind]))}"


@cache
def _code_of(module: str) -> str:
    """Return the hash of an item's source. The hash is cached, because later edits do not change the imported code."""
    from saliency_bench.utils.source_code import package_code  # slow to import, and not needed to list names

    return package_code(module)


def declaration_of(kind: str, name: str, function: Callable[..., Any]) -> Any:
    """Return the declaration of an item's function.

    Raises:
        UserError: The function has no declaration or version.
    """
    declaration = getattr(function, "declaration", None)
    if getattr(declaration, "version", None) is None:
        raise UserError(f"{KINDS[kind]} {name} has no version; write @sb.{KINDS[kind]}(version=1, ...) above {name}")
    return declaration


def owner_of(version: int | str) -> str:
    """Return the package of an item with this version, such as "their-package 1.2.0", or "" for this package."""
    return str(version).partition(OF)[2].partition(CODE)[0]


def is_named(version: int | str) -> bool:
    """Return whether a version belongs to a named item. If not, it is the hash of a function."""
    return isinstance(version, int) or bool(owner_of(version))


def names(kind: str) -> list[str]:
    """Return the public names of the items of a kind."""
    return list(files(kind))


def load(kind: str, name: str, part: str = "") -> ModuleType:
    """Import an item, or the file `part` of its folder, and return the module.

    Raises:
        UserError: The name is unknown, or a library that the item needs is missing.
    """
    items = files(kind)
    public = name.replace("_", "-") if kind in DASHED else name
    if public not in items:
        check_readable(kind, public)
        raise unknown_item(kind, name)
    if public in _added(kind):
        return _load_added(kind, public, part)
    main = items[public]
    is_folder = main.parent not in folders(kind)
    inside = f"{main.stem}.{part or main.stem}" if is_folder else main.stem
    try:
        return _imported(kind, f"saliency_bench.{kind}.{inside}")
    except ModuleNotFoundError as error:
        missing = (error.name or "").split(".")[0]
        if missing in ("", "saliency_bench") or lacking(error):
            raise
        raise UserError(f"{name} needs the library {missing}: pip install {missing}") from error
    except SystemExit as error:
        raise UserError(f"{main} calls sys.exit({error}) when it is imported; remove that line") from error


def function_of(kind: str, name: str, part: str = "") -> Callable[..., Any]:
    """Import an item, or the file `part` in its folder, and return the function that has the name of the item.

    Raises:
        UserError: The item cannot be imported (`load`), or has no function of this name.
    """
    module = load(kind, name, part)
    if (function := getattr(module, name, None)) is None:
        owner = distribution_of(kind, name)
        raise UserError(f"{KINDS[kind]} {name}{OF}{owner}: {module.__name__} has no function {name}; an item and its "
                        "function must have the same name")  # fmt: skip
    return function


def _load_added(kind: str, name: str, part: str) -> ModuleType:
    """Import an item from another package.

    Raises:
        UserError: The import fails.
    """
    try:
        with no_exit():
            return _imported(kind, _module_of(kind, name, part))
    except (Exception, KeyboardInterrupt) as error:
        if isinstance(error, KeyboardInterrupt) and _is_ctrl_c(error):
            raise
        line = f"{KINDS[kind]} {name} of {distribution_of(kind, name)} cannot be imported: {described(error)}"
        raise UserError(line) from error


def _imported(kind: str, module: str) -> ModuleType:
    """Import a module. If it belongs to an explainer or a metric, it can be imported without torch."""
    with stand_ins(module.partition(".")[0]) if kind in DECLARED else nullcontext():
        return import_module(module)


def _is_ctrl_c(error: KeyboardInterrupt) -> bool:
    """Return whether a KeyboardInterrupt may come from Ctrl-C and not from the imported code.

    The signal handler of a command raises a subclass; Python's default handler raises KeyboardInterrupt itself.
    """
    return type(error) is not KeyboardInterrupt or signal.getsignal(signal.SIGINT) is signal.default_int_handler


def _module_of(kind: str, name: str, part: str) -> str:
    """Return the name of the module of an item from another package. If the item is a folder, `part` is the file."""
    module = _points(kind)[name].module
    return f"{module}.{part or _added(kind)[name].stem}" if _places(kind)[name].is_dir() else module


def install_hint(extra: str = "") -> str:
    """Return the pip command that installs this package with an extra, from the checkout or from PyPI."""
    root, extra = HERE.parent, f"[{extra}]" * bool(extra)
    if not (root / "pyproject.toml").is_file():
        return f'pip install "saliency-bench{extra}"'
    return f'pip install -e "{"." if Path.cwd() == root else root}{extra}"'


def unknown_item(kind: str, name: str) -> UserError:
    """Return the error for an unknown name. It suggests aliases and close matches."""
    return unknown(KINDS[kind], name, names(kind), aliases(kind))


def aliases(kind: str) -> dict[str, tuple[str, ...]]:
    """Return {public name: alternative names}. Nothing is imported."""
    if kind in DECLARED:
        return {name: tuple(declared(kind, name, "also_called", ())) for name in files(kind)}
    return {name: tuple(constant(path, "ALSO_CALLED", ())) for name, path in files(kind).items()}


def constant(path: Path, name: str, default: Any = None) -> Any:
    """Return the literal that a file assigns to a name, or the default. The file is not imported."""
    for line in _parse(path).body:
        if isinstance(line, ast.Assign) and ast.unparse(line.targets[0]) == name:
            return _literal(line.value, default)
    return default


def declared(kind: str, name: str, key: str, default: Any = None) -> Any:
    """Return the literal value of a keyword in an item's decorator. The item is not imported."""
    function = _function(kind, name)
    for decorator in function.decorator_list if function else ():
        if isinstance(decorator, ast.Call):
            for keyword in decorator.keywords:
                if keyword.arg == key:
                    return _literal(keyword.value, default)
    return default


def _literal(value: ast.expr, default: Any) -> Any:
    """Return the value of a literal expression, or the default for any other expression."""
    try:
        return ast.literal_eval(value)
    except ValueError:
        return default


def option_names(kind: str, name: str) -> list[str] | None:
    """Return the option names of an explainer or metric, or None if its function is in a different file.

    Nothing is imported.
    """
    function = _function(kind, name)
    return None if function is None else [option.arg for option in function.args.kwonlyargs if option.arg != "seeds"]


def asked_for(kind: str, name: str) -> list[str]:
    """Return the names of the positional parameters of an explainer or metric. Nothing is imported."""
    function = _function(kind, name)
    return [parameter.arg for parameter in function.args.args] if function else []


def _function(kind: str, name: str) -> ast.FunctionDef | None:
    """Return the syntax tree of an item's function, or None if the function is in a different file."""
    for line in _parse(score_file(kind, name)).body:
        if isinstance(line, ast.FunctionDef) and line.name == name:
            return line
    return None


def score_file(kind: str, name: str) -> Path:
    """Return the file that contains the function with the name of the item."""
    main = files(kind)[name]
    beside = main.with_name("score.py")
    return beside if kind == "metrics" and beside.is_file() else main


def summary(path: Path) -> str:
    """Return the first line of a file's docstring. The file is not imported."""
    return (ast.get_docstring(_parse(path)) or "").partition("\n")[0]


@lru_cache(maxsize=256)
def _read(path: Path, modified: int) -> ast.Module:
    """Parse a Python file and cache the result. `modified`, the time of the last change, is part of the cache key."""
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def _parse(path: Path) -> ast.Module:
    """Parse a Python file. The result is cached until the file changes."""
    return _read(path, path.stat().st_mtime_ns)
