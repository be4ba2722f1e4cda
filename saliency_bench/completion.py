"""Tab completion of commands, options and names with argcomplete. Only the command that was typed is imported."""

import argparse
import os
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import argcomplete
from argcomplete.completers import DirectoriesCompleter, FilesCompleter

from saliency_bench import registry
from saliency_bench.arguments import PROGRAM, Parser, parser_of
from saliency_bench.data.dataset_names import list_datasets

Completer = Callable[..., Iterable[str]]
NUMBERS = ("N", "X", "SECONDS")
SOURCES = Path(__file__).parent / "compute" / "classifiers" / "sources.py"


def complete() -> None:
    """Print completions and end the process. If the shell does not request a completion, do nothing."""
    line = os.environ.get("COMP_LINE", "")[: int(os.environ.get("COMP_POINT") or 0)]
    typed = line.split()[1:]
    command = next(iter(typed if line.endswith(" ") else typed[:-1]), "")  # only a complete word is a command
    parser = Parser(prog=PROGRAM)
    parser.add_argument("--version", action="store_true", help="show the installed version")
    commands = parser.add_subparsers(metavar="COMMAND")
    known = registry.files("push_scripts")
    if command in known:  # other commands are not read
        commands.add_parser(command)
        commands.choices[command] = typed_parser(command, typed[1:])  # type: ignore[assignment]
    elif command == "help":
        commands.add_parser("help").add_argument("name", choices=[*known, *_items()])
    else:
        for name, path in known.items():
            commands.add_parser(name, help=registry.summary(path))
        commands.add_parser("help", help="show the options of a command, explainer, metric or dataset")
    argcomplete.autocomplete(parser, always_complete_options="long")


def typed_parser(command: str, words: list[str]) -> argparse.ArgumentParser:
    """Return the parser of a command. The values of its options can be completed."""
    module = registry.load("push_scripts", command)
    parser = _by_first_word(module, words) if hasattr(module, "INNER") else parser_of(command, module)
    for action in parser._actions:
        completer = _completer(action)
        if completer and not hasattr(action, "completer"):
            setattr(action, "completer", completer)  # noqa: B010  argcomplete reads this attribute
    return parser


def _by_first_word(module: ModuleType, words: list[str]) -> argparse.ArgumentParser:
    """Return the parser of a command. Its options depend on its first argument, the name of an `INNER` item."""
    parser = Parser(prog=PROGRAM)
    names = parser.add_subparsers(metavar="NAME")
    for name, path in registry.files(module.INNER).items():
        names.add_parser(name, help=registry.summary(path))
        if words[:1] == [name]:
            names.choices[name] = module.inner(name)
    return parser


def _completer(action: argparse.Action) -> Completer | None:
    kind, metavar = getattr(action, "kind", action.dest), str(action.metavar)
    if kind in ("explainers", "metrics"):
        return partial(_with_options, kind)
    if kind == "item":
        return lambda **_: ("datasets", "explainers", "metrics", "commands", "models", *_items())
    if kind == "dataset":
        return lambda prefix="", **_: _or_folder(list_datasets(), prefix)
    if kind in ("model", "other_model"):
        return lambda prefix="", **_: _or_folder(registry.constant(SOURCES, "KNOWN", ()), prefix)
    if kind == "target" and action.metavar is None:  # `--target` of a run, not a class
        from saliency_bench.spec import TARGETS

        return partial(_or_file, TARGETS)
    if kind == "device":
        return lambda **_: ("cpu", "cuda")
    if metavar in ("DIR", "RUN"):
        return DirectoriesCompleter()
    return (lambda **_: ()) if metavar in NUMBERS else None


def _with_options(kind: str, prefix: str = "", **_: Any) -> list[str]:
    """Return the names of explainers or metrics. After "NAME:", return the options of this item."""
    name, colon, options = prefix.partition(":")
    if not colon or name not in registry.files(kind):
        return registry.names(kind)
    given = options.rpartition(",")[0]
    before = f"{name}:{given}," if given else f"{name}:"
    return [f"{before}{option}=" for option in registry.option_names(kind, name) or () if f"{option}=" not in given]


def _items() -> list[str]:
    return [name for kind in ("explainers", "metrics", "hub_builders") for name in registry.names(kind)]


def _or_folder(names: Iterable[str], prefix: str) -> list[str]:
    return [*names, *DirectoriesCompleter()(prefix)]


def _or_file(names: Iterable[str], prefix: str = "", **_: Any) -> list[str]:
    return [*names, *FilesCompleter()(prefix)]
