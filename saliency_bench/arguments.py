"""Command-line parsing based on argparse, with one-line errors and suggestions for unknown options."""

import argparse
import re
from collections import Counter
from collections.abc import Iterable
from types import ModuleType
from typing import Any, NoReturn

from saliency_bench.errors import UserError, did_you_mean, unknown
from saliency_bench.terminal import Help, required_usage, show_help

PROGRAM = "saliency-bench"
NEGATIVE = re.compile(r"-(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$", re.IGNORECASE)

OF_NETWORKS = ("--weights", "--mean", "--std", "--size", "--labels", "--name")  # options of --model

CHOICE = re.compile(r"invalid choice: '(?P<given>[^']*)' \(choose from (?P<known>.*)\)")


class Parser(argparse.ArgumentParser):
    """Parser that raises `UserError` and lists only the required arguments in its usage line."""

    color = False  # `show_help` adds the colours in all versions of Python

    def __init__(self, *args: Any, **options: Any):
        super().__init__(*args, **options)
        self._negative_number_matcher = NEGATIVE  # argparse's own pattern treats -1e-2 as an option in some versions

    def format_help(self) -> str:
        """Return the help, with only the required arguments in its usage line."""
        self.usage = self.usage or required_usage(self)
        self._positionals.title = "arguments"
        return super().format_help()

    def print_help(self, file: Any = None) -> None:
        """Print the help, wrapped to the width of the terminal."""
        show_help(self.format_help())

    def error(self, message: str) -> NoReturn:
        """Raise UserError with the message from argparse."""
        choice = CHOICE.search(message)
        near = did_you_mean(choice["given"], re.findall(r"[\w:-]+", choice["known"])) if choice else ""
        raise UserError(f"{message}{near or '; '}{' ' * bool(near)}{self.prog} --help shows an example")


def parse(parser: argparse.ArgumentParser, argv: list[str]) -> argparse.Namespace:
    """Parse command-line arguments.

    Raises:
        UserError: An argument is invalid, an option is unknown, or an option that may occur only once is repeated.
    """
    options = {flag: action for action in parser._actions for flag in action.option_strings}
    _check_options(parser, options, argv)
    times = Counter(options[flag].dest for word in argv if (flag := word.partition("=")[0]) in options)
    for word in argv:
        action = options.get(flag := word.partition("=")[0])
        repeats = isinstance(action, argparse._ExtendAction)
        if action is not None and action.nargs != 0 and times[action.dest] > 1 and not repeats:
            fix = f"write {flag} {action.metavar} {action.metavar} ..." if action.nargs == "+" else "use it once"
            parser.error(f"{flag} is given twice; {fix}")
    args, strange = parser.parse_known_args(argv)
    if strange:
        parser.error(f"unexpected argument '{strange[0]}'")
    return args


def _check_options(parser: argparse.ArgumentParser, options: Iterable[str], argv: list[str]) -> None:
    """Raise UserError for an unknown option, with a suggestion.

    This check runs before argparse reports missing options.
    """
    if any(action.nargs == argparse.REMAINDER for action in parser._actions):
        return  # the options belong to another parser
    before_dashes = argv[: argv.index("--")] if "--" in argv else argv
    for word in before_dashes:
        flag = word.partition("=")[0]
        if re.fullmatch(r"--?[^\W\d][\w-]*", flag) and flag not in options:
            if flag in OF_NETWORKS and "--model" in options:
                fix = f"write it after the network, as in --model ./net.py:make:{flag.strip('-')}=..."
                raise UserError(f"unknown option '{flag}' of {parser.prog}; {fix}")
            raise unknown("option", flag, options, owner=parser.prog)


def parser_of(command: str, module: ModuleType) -> argparse.ArgumentParser:
    """Return the parser for a command. The command's docstring is its description."""
    about, _, example = (module.__doc__ or "").partition("\n\n")
    parser = Parser(
        prog=f"{PROGRAM} {command}",
        description=about,
        epilog=example,
        formatter_class=Help,
        allow_abbrev=False,
    )
    module.arguments(parser)
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    return parser
