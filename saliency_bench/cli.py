# PYTHON_ARGCOMPLETE_OK
"""The command `saliency-bench`: one file in `push_scripts/` per sub-command, imported only when it is asked for.

A command is a module with a docstring (what it does, then an example), `arguments(parser)`, `main(args)` and SECTION,
the heading it is listed under.
"""

import argparse
import codecs
import glob
import os
import re
import shlex
import signal
import sys
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from difflib import get_close_matches
from io import TextIOWrapper
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

import saliency_bench
from saliency_bench import registry
from saliency_bench.errors import LONGEST, UserError, one_line, unknown
from saliency_bench.terminal import Help, fitted, required_usage, show_help
from saliency_bench.utils.interrupts import Stopped, stopped_by_signals
from saliency_bench.utils.messages import complain
from saliency_bench.utils.progress import silent
from saliency_bench.utils.storage import storage_error

PROGRAM = "saliency-bench"
SECTIONS = ("start here", "prepare", "measure", "people", "publish", "extend")  # of the overview, in this order
HELP = ("-h", "--help", "help")


def main(argv: list[str] | None = None) -> int:
    argv = sys.argv[1:] if argv is None else argv
    _print_anything()
    if "_ARGCOMPLETE" in os.environ:  # the shell asks what may follow
        from saliency_bench.completion import complete

        complete()
    asked = [word for word in argv if word not in HELP]
    if not asked:
        show_help(overview())
        return 0
    if argv[0] in ("-V", "--version"):
        print(saliency_bench.__version__)
        return 0
    if argv[0] in HELP:
        argv = [*asked, "--help"] if asked[0] in registry.names("push_scripts") else ["list", *asked]
    if get_close_matches(argv[0], ["--version"], cutoff=0.75):
        complain(f"error: unknown option '{argv[0]}'; did you mean --version?")
        return 2
    if argv[0].startswith("-"):
        complain(f"error: options follow the command, as in {PROGRAM} list {argv[0]}; {PROGRAM} --help lists commands")
        return 2
    return guarded(argv[0], argv[1:])


def _print_anything() -> None:
    """Text as UTF-8 where the locale knows ASCII alone; elsewhere, what it cannot show as escapes, and no traceback."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            ascii_only = codecs.lookup(stream.encoding).name == "ascii" and not os.environ.get("PYTHONIOENCODING")
            stream.reconfigure(encoding="utf-8" if ascii_only else None, errors="backslashreplace")


def guarded(command: str, argv: list[str]) -> int:
    """Run a command; what the user can fix becomes one line on standard error and exit code 2.

    A signal ends it with one line, and with 128 and the signal's number as exit code.
    """
    debug = "--debug" in argv
    try:
        module = registry.load("push_scripts", command)
        args = parse(parser_of(command, module), argv)
        quiet = silent(getattr(args, "quiet", False))
        with quiet, stopped_by_signals(lambda number: _last_words(number, command, argv)):
            code = module.main(args) or 0
        _leave_others()
        return code
    except KeyboardInterrupt as stop:
        number = stop.number if isinstance(stop, Stopped) else signal.SIGINT
        _last_words(number, command, argv)
        return 128 + number
    except BrokenPipeError:  # the reader, say `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (UserError, OSError) as error:
        if debug:
            raise
        told = error if isinstance(error, UserError) else storage_error(error) or error
        complain(f"error: {one_line(told, LONGEST)}")
        return 2
    except Exception as error:  # a fault of ours: still no page of traceback, but how to get it
        if debug:
            raise
        if "Symlink loop" in str(error):  # as pathlib says of a path that it cannot follow
            complain(f"error: {one_line(error, LONGEST)}: the link leads to itself; give another path")
            return 2
        if full := storage_error(error):
            complain(f"error: {full}")
            return 2
        complain(f"unexpected error: {type(error).__name__}: {one_line(error, LONGEST)}; --debug shows where")
        return 1


def _leave_others() -> None:
    """Of several processes: end their connection, whose threads may abort one that ends first."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        distributed.destroy_process_group()


def _last_words(number: int, command: str, argv: list[str]) -> None:
    """What is kept, and how to go on, of a command that a signal ended; nobody may be there to read it."""
    launched = "the same torchrun command, of processes with: " if "TORCHELASTIC_RUN_ID" in os.environ else ""
    by = "" if number == signal.SIGINT else f" by {signal.Signals(number).name}"
    with suppress(OSError):
        complain(f"stopped{by}; {_kept(command, argv)}: {launched}{shlex.join([PROGRAM, command, *argv])}")


def _kept(command: str, argv: list[str]) -> str:
    """What a command has made and will use again; its `KEPT`: what that is, and a pattern of its files beside --out."""
    module = sys.modules.get(f"saliency_bench.push_scripts.{command.replace('-', '_')}")
    what, pattern = getattr(module, "KEPT", ("", ""))
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--out", nargs="?", const="", default="")
    out = Path(parser.parse_known_args(argv)[0].out).absolute()
    if pattern and not any(out.parent.glob(pattern.format(out=glob.escape(out.name)))):
        what = ""
    return f"{what} are kept; go on with" if what else "nothing is half-written; start again with"


class Parser(argparse.ArgumentParser):
    """Whose errors are one line, and whose usage names what is required."""

    color = False  # `show_help` sees to it in all versions of Python

    def format_help(self) -> str:
        self.usage = self.usage or required_usage(self)
        self._positionals.title = "arguments"
        return super().format_help()

    def print_help(self, file: Any = None) -> None:
        show_help(self.format_help())

    def error(self, message: str) -> NoReturn:
        text = _in_our_words(message)
        raise UserError(text if text.endswith("?") else f"{text}; {self.prog} --help shows an example")


# {what argparse says: the same as a person would}
MESSAGES = {
    r"argument (\S+): invalid int value: (.*)": r"\1 takes a whole number; got \2",
    r"argument (\S+): invalid float value: (.*)": r"\1 takes a number; got \2",
    r"argument (\S+): expected one argument": r"\1 needs a value",
    r"argument (\S+): expected at least one argument": r"\1 needs at least one value",
    r"argument (\S+): not allowed with argument (\S+)": r"\1: not allowed with argument \2; leave one of them out",
    r"the following arguments are required: ([^,]*)": r"\1 is required",
    r"the following arguments are required: (.*)": r"\1 are required",
}
CHOICE = r"argument (\S+): invalid choice: '(.*)' \(choose from (.*)\)"


def _in_our_words(message: str) -> str:
    if wrong := re.fullmatch(CHOICE, message):
        flag, given, choices = wrong.groups()
        known = re.findall(r"[\w.-]+", choices)
        is_option = flag.startswith("-")
        return str(unknown("value" if is_option else "argument", given, known, owner=flag if is_option else ""))
    for pattern, words in MESSAGES.items():
        if re.fullmatch(pattern, message):
            return re.sub(pattern, words, message)
    return message


def parse(parser: argparse.ArgumentParser, argv: list[str]) -> argparse.Namespace:
    """Raises: UserError for what does not fit, for an option given twice that may come once, and for an unknown one."""
    options = {flag: action for action in parser._actions for flag in action.option_strings}
    _check_options(parser, options, argv)
    times = Counter(options[flag].dest for word in argv if (flag := word.partition("=")[0]) in options)
    for word in argv:
        action = options.get(flag := word.partition("=")[0])
        repeats = isinstance(action, argparse._ExtendAction)
        if action is not None and action.nargs != 0 and times[action.dest] > 1 and not repeats:
            fix = f"write {flag} {action.metavar} {action.metavar} ..." if action.nargs == "+" else "give it once"
            parser.error(f"{flag} is given twice; {fix}")
    args, strange = parser.parse_known_args(argv)
    if strange:
        parser.error(f"unexpected argument '{strange[0]}'")
    return args


def _check_options(parser: argparse.ArgumentParser, options: Iterable[str], argv: list[str]) -> None:
    """Raises: UserError for an unknown option, before argparse misses the one that it was meant to be."""
    if any(action.nargs == argparse.REMAINDER for action in parser._actions):
        return  # they belong to another parser
    before_dashes = argv[: argv.index("--")] if "--" in argv else argv
    for word in before_dashes:
        flag = word.partition("=")[0]
        if re.fullmatch(r"--?[^\W\d][\w-]*", flag) and flag not in options:
            raise unknown("option", flag, options, owner=parser.prog)


def parser_of(command: str, module: ModuleType) -> argparse.ArgumentParser:
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


def overview() -> str:
    commands = registry.files("push_scripts")
    width = max(map(len, commands), default=0)
    sections: dict[str, list[str]] = {title: [] for title in SECTIONS}
    for name, path in commands.items():
        section = registry.constant(path, "SECTION", "other")
        sections.setdefault(section, []).append(f"  {name:<{width}}  {registry.summary(path)}")
    listed = [line for title, lines in sections.items() if lines for line in ("", f"{title}:", *lines)]
    text = "\n".join(
        [
            "Measure whether a saliency map of an image classifier can be trusted.",
            "",
            f"usage: {PROGRAM} COMMAND [options]",
            *listed,
            "",
            f"{PROGRAM} help NAME   options and an example of a command, explainer, metric or dataset",
            f"{PROGRAM} --version   the installed version",
            "",
            "Tab completion: add one of these lines to the startup file of your shell.",
            f'  bash, zsh  eval "$(register-python-argcomplete {PROGRAM})"',
            f"  fish       register-python-argcomplete --shell fish {PROGRAM} | source",
        ]
    )
    return fitted(text)


if __name__ == "__main__":
    sys.exit(main())
