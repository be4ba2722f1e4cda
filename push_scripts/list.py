"""List the datasets, explainers, metrics, models and commands.

example:
  saliency-bench list explainers
"""

import json
from argparse import ArgumentParser, Namespace

from saliency_bench import registry
from saliency_bench.cli import fitted
from saliency_bench.push_scripts import _shared

SECTION = "start here"
PLUGINS = {"datasets": "hub_builders", "explainers": "explainers", "metrics": "metrics", "commands": "push_scripts"}


def arguments(parser: ArgumentParser) -> None:
    parser.add_argument("what", nargs="?", choices=[*PLUGINS, "models"], help="list only these (default: all)")
    _shared.output(parser)


def main(args: Namespace) -> None:
    kinds = [args.what] if args.what else [*PLUGINS, "models"]
    listed = {kind: _models() if kind == "models" else _plugins(PLUGINS[kind]) for kind in kinds}
    if args.json:
        print(json.dumps(listed, indent=2))
        return
    for kind, items in listed.items():
        print(f"{kind}:")
        width = max(map(len, items))
        for name, about in items.items():
            print(fitted(f"  {name:<{width}}  {about}".rstrip()))
        if kind == "explainers":
            print(fitted(_legend()))


def _legend() -> str:
    from saliency_bench.explainers._costs import SIDE

    options = "with default options"
    return f"  [what it needs of the network; its forward passes for an image of {SIDE} x {SIDE} {options}]"


def _plugins(folder: str) -> dict[str, str]:
    files = registry.files(folder)
    if folder == "metrics":
        files = {name: path.with_name("score.py") for name, path in files.items()}
    return {name: registry.summary(path) + (_costs(name) if folder == "explainers" else "")
            for name, path in files.items()}  # fmt: skip


def _costs(name: str) -> str:
    from saliency_bench.explainers._costs import costs

    return f" [{text}]" if (text := costs(name)) else ""


def _models() -> dict[str, str]:
    from saliency_bench.classifiers.sources import KNOWN

    return dict.fromkeys(KNOWN, "") | {"torchvision:NAME": "any classifier of torchvision, with its default weights"}
