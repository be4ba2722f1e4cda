"""The plugin folders (explainers, metrics, hub_builders, push_scripts ...): their items by file name.

An item is a file `NAME.py` or a folder `NAME/` that holds `NAME.py`; names that begin with `_` are private to their
folder. Nothing is imported before it is used, so a missing optional library only affects the plugins that need it.
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
DASHED = ("hub_builders", "push_scripts")  # their public names have dashes: shapes-xai, install-metrics


def folders(kind: str) -> list[Path]:
    spec = find_spec(f"saliency_bench.{kind}")
    return [] if spec is None else [Path(location) for location in spec.submodule_search_locations or ()]


def files(kind: str) -> dict[str, Path]:
    """{public name: its main file}, sorted by name."""
    items: dict[str, Path] = {}
    for folder in folders(kind):
        for path in sorted(folder.iterdir()):
            main = path / f"{path.name}.py" if path.is_dir() else path
            if main.suffix == ".py" and main.is_file() and not path.name.startswith(("_", ".")):
                items[main.stem.replace("_", "-") if kind in DASHED else main.stem] = main
    return items


def names(kind: str) -> list[str]:
    return list(files(kind))


def load(kind: str, name: str, part: str = "") -> ModuleType:
    """Import one item (or the file `part` of its folder).

    Raises: UserError for an unknown name (with the nearest ones), or a missing library (with the install command).
    """
    items = files(kind)
    public = name.replace("_", "-") if kind in DASHED else name
    if public not in items:
        raise unknown(KINDS[kind], name, items)
    main = items[public]
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
