"""List datasets, explainers, metrics, models, suites and commands.

example:
  saliency-bench list explainers
  saliency-bench list rise saliency_miou

Given the name of an explainer, metric or dataset, the command shows the item's options, its cost and an example, as
`saliency-bench help NAME` does.
"""

import json
from argparse import ArgumentParser, Namespace
from pathlib import Path

from saliency_bench import registry
from saliency_bench.cli import SECTIONS
from saliency_bench.errors import UserError
from saliency_bench.push_scripts import _items, _shared
from saliency_bench.push_scripts.suite import METRICS_CHECK
from saliency_bench.terminal import fitted, show_help

SECTION = "start here"
PLUGINS = {"datasets": "hub_builders", "explainers": "explainers", "metrics": "metrics", "commands": "push_scripts"}
ALL = [*PLUGINS, "models", "suites"]
# Headings in display order: {heading: property of the items below it}.
EXPLAINERS = {
    "feature maps of a convolutional network": "activations",
    "attention of a vision transformer": "attention",
    "gradients of any network": "gradients",
    "outputs of any network, in many forward passes": "outputs",
    "baselines, which ignore the network": "nothing",
}
OWN, DRAWN = "your own data", "without a download"
BROKEN = "cannot be used"
METRICS = {  # {heading: property}; the first matching heading is used
    "false positives, from two classifiers": "other",
    "agreement with a mask": "masks",
    "response of the classifier as pixels are removed or inserted": "curves",
    "behaviour of the explainer, which is run several times": "explain",
    "salient regions pasted into other images": "partners",
    "networks retrained on changed images": "retrained",
    "people's answers": "first_right",
}
HEADINGS = {
    "datasets": (OWN, DRAWN),
    "explainers": tuple(EXPLAINERS),
    "metrics": tuple(METRICS),
    "commands": SECTIONS,
}


def arguments(parser: ArgumentParser) -> None:
    """Add the arguments of the command."""
    text = f"list only these ({', '.join(ALL)}), or show items by name (default: list all)"
    _shared.completed_as(parser.add_argument("what", nargs="*", metavar="NAME", help=text), "item")
    _shared.output(parser)


def main(args: Namespace) -> None:
    """Print the lists, or the full description of items."""
    kinds = [word for word in args.what if word in ALL]
    if names := [word for word in args.what if word not in ALL]:
        _show([_items.kind_of(name, kinds) for name in names], args.json)
        return
    kinds = kinds or ALL
    with_costs = args.json or kinds == ["explainers"]  # torch is imported only to compute costs
    others = {"models": _models, "suites": _suites}
    listed = {kind: others[kind]() if kind in others else _plugins(PLUGINS[kind], with_costs) for kind in kinds}
    if args.json:
        print(json.dumps(listed, indent=2))
        return
    blocks = ["\n".join(fitted(line) for line in _lines(kind, items)) for kind, items in listed.items()]
    hint = "`saliency-bench list explainers` also shows the number of forward passes, and " * (not args.what)
    show_help("\n\n".join([*blocks, fitted(f"{hint}`saliency-bench help NAME` shows the options of NAME.")]))


def _show(items: list[tuple[str, str]], as_json: bool) -> None:
    """Print the full description of each item, given as (kind, name)."""
    if not as_json:
        show_help("\n\n".join(_items.help_of(*item) for item in items))
        return
    by_kind: dict[str, dict] = {}
    for kind, name in items:
        by_kind.setdefault(kind, {})[name] = _items.about(kind, name)
    print(json.dumps(by_kind, indent=2))


def _lines(kind: str, items: dict[str, str]) -> list[str]:
    width = max(map(len, items))
    sections: dict[str, list[str]] = {title: [] for title in HEADINGS.get(kind, ())}
    paths = registry.files(PLUGINS[kind]) if kind in PLUGINS else {}
    broken = registry.unusable(PLUGINS[kind]) if kind in PLUGINS else {}
    for name, about in items.items():
        section = BROKEN if name in broken else _section(PLUGINS[kind], name, paths[name]) if name in paths else ""
        sections.setdefault(section, []).append(f"{'    ' if section else '  '}{name:<{width}}  {about}".rstrip())
    lines = [f"{kind}:"]
    for section, rows in sections.items():
        lines += [f"  {section}"] * bool(section and rows) + rows
    return lines + [_legend()] * (kind == "explainers" and "]" in "".join(items.values()))


def _section(folder: str, name: str, path: Path) -> str:
    """Return the heading under which an item is listed.

    The heading is the item's own `SECTION`, or is derived from its declaration.
    """
    if section := registry.constant(path, "SECTION"):
        return section
    if folder == "hub_builders":
        if registry.constant(path, "OWN_DATA"):
            return OWN
        return DRAWN if registry.constant(path, "EMBEDDED") else "built from files that you download"
    if folder == "explainers":
        explainer_needs = str(registry.declared(folder, name, "needs", ""))
        return next((title for title, word in EXPLAINERS.items() if word in explainer_needs), "")
    needs = registry.asked_for(folder, name)
    return next((title for title, word in METRICS.items() if word in needs), "other")


def _legend() -> str:
    from saliency_bench.explainers._costs import SIDE

    return (
        f"  [requirements on the network; forward passes for one image of {SIDE} x {SIDE} pixels with default options]"
    )


def _plugins(folder: str, with_costs: bool) -> dict[str, str]:
    """Return {name: one-line description} for the items in a folder of plugins."""
    broken = registry.unusable(folder)
    paths = {name: path for name, path in registry.files(folder).items() if name not in broken}
    about = {name: registry.summary(_describe(folder, name, path)) for name, path in paths.items()}
    if folder == "explainers" and with_costs:
        about = {name: text + _costs(name) for name, text in about.items()}
    owners = {name: registry.distribution_of(folder, name) for name in about}
    return {name: f"{text} ({owners[name]})" if owners[name] else text for name, text in about.items()} | broken


def _describe(folder: str, name: str, path: Path) -> Path:
    """Return the file with the docstring that describes an item."""
    return registry.score_file(folder, name) if folder == "metrics" else path


def _costs(name: str) -> str:
    from saliency_bench.explainers._costs import costs

    try:
        text = costs(name)
    except UserError as error:
        text = str(error)
    return f" [{text}]" if text else ""


def _models() -> dict[str, str]:
    """Return {name: one-line description} for the models."""
    from saliency_bench.compute.classifiers.sources import KNOWN

    others = {
        "torchvision:NAME": "any torchvision classifier, with its default weights",
        "openai/clip-vit-base-patch32": "CLIP and other vision-language models, with --prompts",
    }
    return dict.fromkeys(KNOWN, "") | others


def _suites() -> dict[str, str]:
    """Return {name: one-line description} for the suites and their tables."""
    from saliency_bench.recipes.suites.suite_schema import read_suite, suite_files

    listed: dict[str, str] = {}
    for name, path in suite_files().items():
        try:
            suite = read_suite(path)
        except UserError as error:  # a broken suite from another package
            listed[name] = f"cannot be used: {error}"
            continue
        listed |= {name: suite.paper} | {table: table_of.title for table, table_of in suite.tables.items()}
    return (
        listed | {METRICS_CHECK: "Which metrics score a correct map above damaged maps"} | registry.unusable("suites")
    )
