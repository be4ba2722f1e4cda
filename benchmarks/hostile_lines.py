"""Hostile command lines, generated from the parsers of the commands, so that new commands are covered automatically."""

import argparse
import random
from collections.abc import Callable, Iterator

from saliency_bench import options, registry
from saliency_bench.arguments import parser_of

UNPRINTABLE = [
    "", " ", "\0", "a\0b", "\n", "shapes\nerror: none", "\r\x1b[2J", "\x1b]0;x\x07", "\u202eolleh", "\u2066x\u2069",
    "\ud800", "\udcff", "\ufeffshapes", "e\u0301" * 200, "\u4e2d\u6587", "\U0001f999", "saliency_miou\0",
]  # fmt: skip
SYNTAX = [
    "-", "--", "-1", "--out", "=", "a=b", ":", "a:b=c", ",", "a,,b", "%s%n%(x)s", "{0.__class__}", "$(touch owned)",
    "`touch owned`", "'; touch owned; '", '"', "\\", "*", "None", "null", "true", "nan", "GRADCAM",
]  # fmt: skip
PATHS = [
    "x" * 100_000, "x" * 300 + "/y", "/".join("x" * 3000), "../../..", "~nobody/x", "~/x", ".", "..", "/", "//",
    "C:\\x", "file:///etc/passwd", "/proc/self/mem", "/proc/nothing", "/dev/zero", "/dev/urandom", "/dev/stdin",
    "/etc/shadow", "file.txt/x",
]  # fmt: skip
IDS = [
    "hub:", "hub:a/b", "hub:a/b@" + "f" * 40, "hub:../..", "hub:a/b/c", "a/b/c", "@", "a@b", "a//b", "-x/y", "a/..",
    "a" * 200 + "/" + "b" * 200, "a b/c d", "torchvision:", "torchvision:../x", "torchvision:resnet18\n", "hf://x",
    "torchvision:resnet18:weights=wide.pt", "http://127.0.0.1:9/x", "s3://x/y",
]  # fmt: skip
TEXTS = UNPRINTABLE + SYNTAX + PATHS + IDS
NUMBERS = [
    "0", "-1", "-0", "1.5", "1e400", "-1e400", "nan", "NaN", "inf", "-inf", "0x10", "1_0", " 7 ", "\u0663", "\u00bd",
    "1e-400", "9" * 5000, "1" + "0" * 400, *(str(sign * value) for sign in (1, -1) for value in (2**31, 2**63, 10**30)),
]  # fmt: skip
WRITES = ("out", "--out")  # never get a path outside the sandbox
ESCAPES = ("..", "/", "~", "C:")
# {argument: valid values}, so that a command does not stop at a missing argument.
RIGHT = {
    "dataset": ["shapes"], "model": ["net"], "explainers": ["gradcam"], "metrics": ["saliency_miou"], "out": ["new"],
    "runs": ["done"], "what": ["done"], "item": ["shapes"], "name": ["shapes-xai"], "names": ["saliency_miou"],
    "suite": ["laughs.yaml"],
}  # fmt: skip
USUAL = ("-h", "--help", "--debug")  # options of every command
# Options that limit the time of a command line that turns out to be valid.
SHORT = {"dataset": "shapes", "limit": "2", "batch_size": "2", "epochs": "1", "size": "32", "count": "20",
         "workers": "1"}  # fmt: skip
PLAYED = "played"  # the demo's folder, which contains dataset and network; elsewhere, the demo would train for minutes


class Line:
    """A command line under construction: the command, its positional arguments, and its options with their values."""

    def __init__(self, command: str, parser: argparse.ArgumentParser, dice: random.Random, right: dict | None = None):
        self.command, self.parser, self.dice = [command], parser, dice
        right = RIGHT | (right or {})
        self.words: list[list[str]] = []
        for action in parser._actions:
            positional = not action.option_strings
            if isinstance(action.nargs, str) and action.nargs == argparse.REMAINDER:
                continue
            if positional or action.required:
                default = right.get(action.dest, ["x"])
                value = [dice.choice(sorted(action.choices))] if action.choices else default
                self.words.append(([] if positional else [action.option_strings[0]]) + value)
            elif action.dest in SHORT:
                self.words.append([action.option_strings[0], SHORT[action.dest]])

    @property
    def argv(self) -> list[str]:
        return [*self.command, *(word for words in self.words for word in words)]


def hostile(action: argparse.Action, dice: random.Random, places: list[str]) -> str:
    """Return a hostile value for this argument."""
    writes = action.dest in WRITES
    number = action.type in (int, float)
    kind = dice.choice(["text", "place", "number", "number"] if number else ["text", "place", "place", "number"])
    if action.dest in ("explainers", "metrics") and dice.random() < 0.7:
        return with_options(action.dest, dice)
    found = dice.choice({"text": TEXTS, "place": places, "number": NUMBERS}[kind])
    if action.dest == "maps" and kind == "place":
        return f"mine={found}"
    if writes and found.startswith(ESCAPES):
        return f"new/{found}".replace("..", "dots")
    return found


def with_options(kind: str, dice: random.Random) -> str:
    """Return an explainer or metric with one or several hostile options."""
    name = dice.choice(registry.names(kind))
    module = registry.load(kind, name, "score" if kind == "metrics" else "")
    own = list(options.defaults(getattr(module, name))) or ["x"]
    given = [f"{dice.choice(own)}={dice.choice(NUMBERS + TEXTS)}" for _ in range(dice.choice([1, 1, 2]))]
    return f"{name}:{','.join(given)}"


def optional(line: Line) -> list[argparse.Action]:
    return [action for action in line.parser._actions if action.option_strings and action.dest not in ("help", "debug")]


def spoil_value(line: Line, places: list[str]) -> None:
    """Replace the value of an existing argument with a hostile one."""
    words = line.dice.choice(line.words)
    actions = {flag: action for action in line.parser._actions for flag in action.option_strings}
    plain = [action for action in line.parser._actions if not action.option_strings]
    action = actions.get(words[0]) or plain[0] if plain or words[0] in actions else line.parser._actions[0]
    words[-1] = hostile(action, line.dice, places)


def add_option(line: Line, places: list[str]) -> None:
    """Add an option with a hostile value."""
    if not optional(line):
        return extra_word(line, places)
    action = line.dice.choice(optional(line))
    line.words = [words for words in line.words if words[0] not in action.option_strings]
    flag = line.dice.choice(action.option_strings)
    count = 0 if action.nargs == 0 else 1 if action.nargs is None else line.dice.choice([1, 1, 2, 3])
    values = [hostile(action, line.dice, places) for _ in range(count)]
    joined = values and line.dice.random() < 0.3
    return line.words.append([f"{flag}={values[0]}", *values[1:]] if joined else [flag, *values])


def drop_value(line: Line, places: list[str]) -> None:
    options = [words for words in line.words if words[0].startswith("--") and len(words) > 1]
    if options:
        line.dice.choice(options).pop()
    else:
        add_option(line, places)


def drop_argument(line: Line, places: list[str]) -> None:
    line.words.remove(line.dice.choice(line.words)) if line.words else add_option(line, places)


def repeat(line: Line, places: list[str]) -> None:
    line.words.append(list(line.dice.choice(line.words))) if line.words else add_option(line, places)


def foreign_option(line: Line, places: list[str]) -> None:
    """Add an option that only other commands have, or an unknown flag."""
    other = line.dice.choice(registry.names("push_scripts"))
    parser = parser_of(other, registry.load("push_scripts", other))
    flags = [flag for action in parser._actions for flag in action.option_strings if flag not in USUAL]
    line.words.append([line.dice.choice([*flags, "--banana", "-z", "---", "--\u202e", "--\x1b[2J", "--limi"])])


def extra_word(line: Line, places: list[str]) -> None:
    line.words.insert(line.dice.randrange(len(line.words) + 1), [line.dice.choice(TEXTS + places)])


def shuffled(line: Line, places: list[str]) -> None:
    spoil_value(line, places) if line.words else add_option(line, places)
    line.dice.shuffle(line.words)


def other_command(line: Line, places: list[str]) -> None:
    line.command[0] = line.dice.choice([line.command[0].upper(), line.command[0] + "\0", *TEXTS])


WAYS: dict[Callable[[Line, list[str]], None], int] = {
    spoil_value: 8, add_option: 8, drop_value: 1, drop_argument: 1, repeat: 1, foreign_option: 1, extra_word: 1,
    shuffled: 1, other_command: 0.3,
}  # fmt: skip


def parsers(dice: random.Random) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Yield every command with its parser. If its options depend on an item, the parser for a random item is used."""
    for command in registry.names("push_scripts"):
        module = registry.load("push_scripts", command)
        yield command, parser_of(command, module)
        if hasattr(module, "builder_parser"):
            name = dice.choice(registry.names("hub_builders"))
            yield f"{command} {name}", module.builder_parser(name, registry.load("hub_builders", name))


def lines(places: list[str]) -> Iterator[list[str]]:
    """Yield an infinite sequence of command lines, command by command. The same `places` yield the same lines."""
    number = 0
    while True:
        dice = random.Random(number)
        for command, parser in parsers(dice):
            number += 1
            dice = random.Random(number)
            line = Line(command, parser, dice)
            line.command = command.split()
            if command == "demo":
                line.words = [["--out", PLAYED], ["--limit", "2"]]
            for way in dice.choices(list(WAYS), list(WAYS.values()), k=dice.choice([1, 1, 1, 2, 3])):
                way(line, places) if line.words or way is not spoil_value else add_option(line, places)
            if command == "demo" and PLAYED not in line.argv:
                line.words.append(["--seed", "few"])
            if line.argv[0] not in ("-h", "--help", "help"):
                yield line.argv
