"""List what there is: datasets, explainers, metrics, models, commands.

example:
  saliency-bench list explainers
"""

import json
from argparse import ArgumentParser, Namespace
from pathlib import Path

from saliency_bench import registry

ROOMS = {"datasets": "hub_builders", "explainers": "explainers", "metrics": "metrics", "commands": "push_scripts"}


def arguments(parser: ArgumentParser) -> None:
    parser.add_argument("what", nargs="?", choices=[*ROOMS, "models"], help="one kind only; default: all")
    parser.add_argument("--json", action="store_true", help="print JSON")


def main(args: Namespace) -> None:
    kinds = [args.what] if args.what else [*ROOMS, "models"]
    found = {kind: _models() if kind == "models" else _room(ROOMS[kind]) for kind in kinds}
    if args.json:
        print(json.dumps(found, indent=2))
        return
    for kind, items in found.items():
        print(f"{kind}:")
        width = max(map(len, items))
        for name, about in items.items():
            print(f"  {name:<{width}}  {about}".rstrip())
    if "explainers" in kinds:
        print("In brackets: what an explainer needs of the network, and its forward passes per image.")


def _room(room: str) -> dict[str, str]:
    files = registry.files(room)
    if room == "metrics":
        files = {name: path.with_name("score.py") for name, path in files.items()}
    return {name: registry.summary(path) + _costs(path) for name, path in files.items()}


def _costs(path: Path) -> str:
    told = registry.constants(path)
    return f" [{told['NEEDS']}; {told['PASSES']}]" if "PASSES" in told else ""


def _models() -> dict[str, str]:
    from saliency_bench.classifiers.checkpoints import KNOWN

    return dict.fromkeys(KNOWN, "") | {"torchvision:NAME": "any classifier of torchvision, with its default weights"}
