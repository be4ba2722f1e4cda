"""The plugin folders (explainers, metrics, hub_builders, push_scripts ...): what is in them, by file name.

An item is a file `NAME.py` or a folder `NAME/` that holds `NAME.py`; names that begin with `_` are private to their
folder.
Nothing is imported until it is asked for, so a missing optional library breaks only what needs it.
"""

import ast
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

from saliency_bench.errors import UserError, unknown

KINDS = {
    "explainers": "explainer",
    "metrics": "metric",
    "hub_builders": "dataset",
    "push_scripts": "command",
    "model_cards": "card",
    "spaces": "space",
}
DASHED = ("hub_builders", "push_scripts")  # their names are typed with dashes: shapes-xai, install-metrics


def folders(kind: str) -> list[Path]:
    spec = find_spec(f"saliency_bench.{kind}")
    return [] if spec is None else [Path(place) for place in spec.submodule_search_locations or ()]


def files(kind: str) -> dict[str, Path]:
    """{public name: its main file}, sorted by name."""
    found: dict[str, Path] = {}
    for folder in folders(kind):
        for path in sorted(folder.iterdir()):
            main = path / f"{path.name}.py" if path.is_dir() else path
            if main.suffix == ".py" and main.is_file() and not path.name.startswith(("_", ".")):
                found[main.stem.replace("_", "-") if kind in DASHED else main.stem] = main
    return found


def names(kind: str) -> list[str]:
    return list(files(kind))


def load(kind: str, name: str, part: str = "") -> ModuleType:
    """Import one item (or the file `part` of its folder).

    Raises: UserError with the nearest names for an unknown one, with the line to install for a missing library.
    """
    found = files(kind)
    public = name.replace("_", "-") if kind in DASHED else name
    if public not in found:
        raise unknown(KINDS[kind], name, found)
    main = found[public]
    is_folder = main.parent not in folders(kind)
    inside = f"{main.stem}.{part or main.stem}" if is_folder else main.stem
    try:
        return import_module(f"saliency_bench.{kind}.{inside}")
    except ModuleNotFoundError as error:
        missing = (error.name or "").split(".")[0]
        if missing in ("", "saliency_bench"):
            raise
        raise UserError(f"{name} needs the library {missing}: pip install {missing}") from error


def summary(path: Path) -> str:
    """The first line of a file's docstring, read without importing it."""
    return (ast.get_docstring(ast.parse(path.read_text())) or "").partition("\n")[0]
