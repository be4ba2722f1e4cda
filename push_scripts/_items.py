"""Describe an explainer, metric or dataset in detail: purpose, options, cost and an example."""

from collections.abc import Sequence
from types import ModuleType
from typing import Any

from saliency_bench import options, registry
from saliency_bench.arguments import parser_of
from saliency_bench.errors import unknown
from saliency_bench.push_scripts.build import inner, licence_of
from saliency_bench.terminal import fitted

KINDS = {
    "explainers": "explainers",
    "metrics": "metrics",
    "datasets": "hub_builders",
    "commands": "push_scripts",
}


def kind_of(name: str, among: Sequence[str] = ()) -> tuple[str, str]:
    """Return (kind, public name) of the item with this name.

    Args:
        name: Name that the user typed.
        among: Kinds to search, or () for all.

    Raises:
        UserError: The name is unknown. The message lists the most similar names.
    """
    kinds = {kind: folder for kind, folder in KINDS.items() if kind in among} or KINDS
    for kind, folder in kinds.items():
        public = name.replace("_", "-") if folder in registry.DASHED else name
        if public in registry.files(folder):
            return kind, public
        registry.check_readable(folder, public)
    called: dict[str, list[str]] = {} if among else {kind: [] for kind in KINDS}
    for folder in kinds.values():
        for item, others in registry.aliases(folder).items():
            called[item] = [*others, item.removeprefix("saliency_")]
    *kinds_before, last = [registry.KINDS[folder] for folder in kinds.values()]
    raise unknown(f"{', '.join(kinds_before)} or {last}" if kinds_before else last, name, called, called)


def about(kind: str, name: str) -> dict[str, Any]:
    """Import an item and return its description as a dict in display order."""
    module = registry.load(KINDS[kind], name, "score" if kind == "metrics" else "")
    summary = registry.summary(registry.score_file(KINDS[kind], name))
    if kind == "commands":
        return {"about": summary, "help": parser_of(name, module).format_help()}
    facts = {"explainers": _explainer, "metrics": _metric, "datasets": _dataset}[kind](name)
    if owner := registry.distribution_of(KINDS[kind], name):
        facts["package"] = owner
    return {"about": summary, **facts, "options": _options(kind, name, module), "example": _example(kind, name)}


def help_of(kind: str, name: str) -> str:
    """Return the description of an item as text."""
    if kind == "datasets":
        owner = registry.distribution_of("hub_builders", name)
        return inner(name).format_help() + (f"\npackage: {owner}" if owner else "")
    facts_of = about(kind, name)
    if kind == "commands":
        return facts_of["help"]
    facts = [(key, text) for key, text in facts_of.items() if text and key not in ("about", "options", "example")]
    rows = [
        (f"{key}={options.spelled(option['default'])}", _meaning(option)) for key, option in facts_of["options"].items()
    ]
    width = max(len(key) for key, _ in (*facts, *rows)) + 2
    shown = [f"  {key:<{width}}{text}" for key, text in facts] + ["", "options, with their defaults:"] * bool(rows)
    shown += [f"  {key:<{width}}{text}" for key, text in rows]
    return "\n".join(
        [fitted("\n".join([f"{name}: {facts_of['about']}", "", *shown])), "", "example:", f"  {facts_of['example']}"]
    )


def _meaning(option: dict[str, Any]) -> str:
    """Return an option's description, followed by its allowed values."""
    text = option["about"].rstrip(".")
    missing = [str(choice) for choice in option["choices"] if str(choice) not in text]
    return f"{text} ({' or '.join(map(str, option['choices']))})" if missing else text


def _options(kind: str, name: str, module: ModuleType) -> dict[str, dict[str, Any]]:
    """Return {option: dict with its default, its choices (if there is a fixed set) and its description}."""
    function = module.samples if kind == "datasets" else getattr(module, name)
    known = options.defaults(function)
    described = options.meanings(function.__doc__ or "")
    return {
        key: {"default": default, "choices": list(options.choices(function, key)), "about": described.get(key, "")}
        for key, default in known.items()
    }


def _explainer(name: str) -> dict[str, str]:
    from saliency_bench.explainers._costs import SIDE, costs

    needs, _, passes = costs(name).partition("; ")
    return {"needs": needs, "forward passes": f"{passes}, for one image of {SIDE} x {SIDE} with default options"}


def _metric(name: str) -> dict[str, str]:
    from saliency_bench.bound_metric import registered_metric

    return registered_metric(name).facts


def _dataset(name: str) -> dict[str, str]:
    builder = registry.load("hub_builders", name)
    return {"rule": builder.RULE, "licence": licence_of(builder)}


def _example(kind: str, name: str) -> str:
    if kind == "datasets":
        return f"saliency-bench build {name} --help"
    if kind == "metrics" and "first_right" in registry.asked_for("metrics", name):
        return "saliency-bench analyse runs/first --what agreement --answers answers.csv"
    other = "--metrics saliency_miou" if kind == "explainers" else "--explainers gradcam random"
    if kind == "metrics" and "other" in registry.asked_for("metrics", name):
        other += " --other-model SCENES --other-label scene"
    return f"saliency-bench run --dataset shapes-xai --model MODEL --{kind} {name} {other} --out runs/{name}"
