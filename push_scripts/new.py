"""Create the files of a new explainer, metric, dataset or command.

example:
  saliency-bench new explainer my_method
  saliency-bench new metric saliency_entropy
  saliency-bench new dataset my-data
  saliency-bench new command my-command

The command writes the files of the plugin and a test. Run it in a checkout, then replace every TODO. `pytest
tests/explainers/test_contract.py -k my_method` lists the remaining TODOs. CONTRIBUTING.md describes all steps.
"""

import json
import keyword
import re
from argparse import ArgumentParser, Namespace
from pathlib import Path

from saliency_bench.errors import UserError
from saliency_bench.push_scripts import _shared

SECTION = "extend"
TEMPLATES = Path(__file__).parent / "_new"
# {kind: {path in the checkout: template}}
FILES = {
    "explainer": {
        "explainers/{module}.py": "explainer.py.j2",
        "tests/explainers/test_{module}.py": "explainer_test.py.j2",
    },
    "metric": {
        "metrics/{module}/score.py": "metric_score.py.j2",
        "metrics/{module}/{module}.py": "metric_shell.py.j2",
        "metrics/{module}/README.md": "metric_card.md.j2",
        "metrics/{module}/requirements.txt": "metric_requirements.txt.j2",
        "tests/metrics/test_{module}.py": "metric_test.py.j2",
    },
    "dataset": {
        "hub_builders/{module}.py": "dataset.py.j2",
        "tests/hub_builders/test_{module}.py": "dataset_test.py.j2",
    },
    "command": {
        "push_scripts/{module}.py": "command.py.j2",
        "tests/push_scripts/test_{module}.py": "command_test.py.j2",
    },
}
SHELLS = {"masks": "MapShell", "maps": "MapOnlyShell", "curves": "CurveShell", "explain": "ExplainerShell"}
FOLDERS = {"explainer": "explainers", "metric": "metrics", "dataset": "hub_builders", "command": "push_scripts"}
CONTRACTS = {kind: f"tests/{folder}/test_contract.py" for kind, folder in FOLDERS.items()}
CONTRACTS["command"] = "tests/project/test_plugins.py"
DASHED = ("dataset", "command")
PARTS = ("saliency_bench/registry.py", "explainers", "metrics", "hub_builders", "push_scripts", "tests")


def arguments(parser: ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("kind", choices=list(FILES), help="what to add")
    parser.add_argument(
        "name",
        metavar="NAME",
        help="name, such as my_method, saliency_mine (a metric) or my-data (a dataset or command)",
    )
    about = "input of a metric: maps and masks (masks, default), only maps, curves of probabilities, or an explainer"
    parser.add_argument("--asks", choices=list(SHELLS), help=about)
    _shared.output(parser)


def main(args: Namespace) -> None:
    """Write the files of a new item and print their paths."""
    if args.asks and args.kind != "metric":
        raise UserError(f"--asks applies only to metrics; remove it for a new {args.kind}")
    paths = new(args.kind, args.name, Path.cwd(), args.asks or "masks")
    if args.json:
        print(json.dumps({"files": [str(path) for path in paths]}, indent=2))
        return
    for path in paths:
        print(path)
    name = public_name(args.kind, module_of(args.kind, args.name))
    print(f"next: replace every TODO in these files; `pytest {CONTRACTS[args.kind]} -k {name}` lists them")


def new(kind: str, name: str, folder: Path, asks: str = "masks") -> list[Path]:
    """Write the files of a new item to the checkout that contains `folder`, and return their paths.

    Args:
        kind: "explainer", "metric", "dataset" or "command".
        name: Name of the item.
        folder: Folder inside a checkout.
        asks: For a metric, the input that its function needs: "masks", "maps", "curves" or "explain".

    Raises:
        UserError: The name is invalid or already used, or the folder is outside a checkout.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    module = module_of(kind, name)
    root = checkout_of(folder)
    paths = {root / path.format(module=module): template for path, template in FILES[kind].items()}
    for path in [root / FOLDERS[kind] / module, *paths]:
        if path.exists():
            raise UserError(f"{path} already exists; choose a different name for the new {kind}")
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES), undefined=StrictUndefined, keep_trailing_newline=True, autoescape=False
    )
    words = module.split("_")
    values = {
        "name": public_name(kind, module),
        "title": "".join(word.capitalize() for word in words),
        "heading": " ".join(word.capitalize() for word in words),
        "asks": asks,
        "shell": SHELLS[asks],
        "alone": asks in ("masks", "maps"),  # its module for evaluate needs no saliency_bench
    }
    texts = {path: environment.get_template(template).render(values) for path, template in paths.items()}
    for path, text in texts.items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return list(paths)


def module_of(kind: str, name: str) -> str:
    """Return the module name for an item, with dashes replaced by underscores.

    Raises:
        UserError: The name is not a valid module name.
    """
    module = name.replace("-", "_") if kind in DASHED else name
    if not re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", module) or keyword.iskeyword(module):
        between = "dashes" if kind in DASHED else "underscores"
        raise UserError(f"'{name}' is not a valid {kind} name; use lower-case letters, digits and {between}")
    if kind == "metric" and not module.startswith("saliency_"):
        raise UserError(
            f"the name of a metric in this checkout must begin with saliency_; use saliency_{module} (in your own "
            f"package, such as examples/plugin, any name is allowed)"
        )
    return module


def public_name(kind: str, module: str) -> str:
    """Return the public name of an item, which is the name that users type."""
    return module.replace("_", "-") if kind in DASHED else module


def checkout_of(folder: Path) -> Path:
    """Return the checkout that contains a folder.

    Raises:
        UserError: The folder is not in a checkout.
    """
    for root in (folder, *folder.parents):
        if all((root / part).exists() for part in PARTS):
            return root
    raise UserError(
        f"{folder} is not in a checkout of saliency-bench; clone the repository and run this command inside the clone"
    )
