# PYTHON_ARGCOMPLETE_OK
"""Command `saliency-bench`. Each subcommand is a file in `push_scripts/`, which is imported only when needed.

A subcommand is a module with a docstring (a description, then an example), the functions `arguments(parser)` and
`main(args)`, and the constant SECTION (the heading under which `saliency-bench --help` lists the subcommand).
"""

import argparse
import codecs
import glob
import os
import select
import shlex
import signal
import sys
from contextlib import suppress
from difflib import get_close_matches
from io import TextIOWrapper
from pathlib import Path
from typing import TextIO

import saliency_bench
from saliency_bench import registry
from saliency_bench.arguments import PROGRAM, parse, parser_of
from saliency_bench.errors import LONGEST, UserError, one_line
from saliency_bench.terminal import fitted, show_help
from saliency_bench.utils.interrupts import Stopped, stopped_by_signals
from saliency_bench.utils.messages import lines_shown, show
from saliency_bench.utils.progress import silent
from saliency_bench.utils.stand_ins import lacking
from saliency_bench.utils.storage import storage_error

SECTIONS = ("start here", "prepare", "measure", "people", "publish", "extend")  # ordered headings of the overview
HELP = ("-h", "--help", "help")


def main(argv: list[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    try:
        try:
            return _main(sys.argv[1:] if argv is None else argv)
        finally:
            sys.stdout.flush()  # otherwise Python flushes at exit and prints an error
    except BrokenPipeError as error:
        if not _silence_broken_pipes():
            show(f"error: {one_line(error)}")
            return 2
        return 0


def _silence_broken_pipes() -> bool:
    """Discard further output to closed pipes, for example after `| head`. Return whether a pipe was closed."""
    gone = [stream for stream in (sys.stdout, sys.stderr) if _is_reader_gone(stream)]
    for stream in gone:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    return bool(gone)


def _is_reader_gone(stream: TextIO) -> bool:
    waiting = select.poll()
    try:
        waiting.register(stream.fileno(), 0)
    except (OSError, ValueError):  # the stream is not a file, as under pytest
        return False
    return any(event & select.POLLERR for _, event in waiting.poll(0))


def _main(argv: list[str]) -> int:
    """Run the command line and return its exit code. A BrokenPipeError is passed on to the caller."""
    _print_anything()
    if "_ARGCOMPLETE" in os.environ:  # the shell requests completions
        from saliency_bench.completion import complete

        complete()
    words = [word for word in argv if word not in HELP]
    if not words:
        show_help(overview())
        return 0
    if argv[0] in ("-V", "--version"):
        print(saliency_bench.__version__)
        return 0
    if argv[0] in HELP:
        argv = [*words, "--help"] if words[0] in registry.names("push_scripts") else ["list", *words]
    if get_close_matches(argv[0], ["--version"], cutoff=0.75):
        show(f"error: unknown option '{argv[0]}'; did you mean --version?")
        return 2
    if argv[0].startswith("-"):
        show(
            f"error: options must follow the command, as in {PROGRAM} list {argv[0]}; run {PROGRAM} --help to list "
            "the commands"
        )
        return 2
    with lines_shown():
        return guarded(argv[0], argv[1:])


def _print_anything() -> None:
    """Encode output as UTF-8 if the locale is ASCII; otherwise escape characters that the encoding does not support."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            ascii_only = codecs.lookup(stream.encoding).name == "ascii" and not os.environ.get("PYTHONIOENCODING")
            stream.reconfigure(encoding="utf-8" if ascii_only else None, errors="backslashreplace")


def guarded(command: str, argv: list[str]) -> int:
    """Run a command and return its exit code.

    If the user can fix an error, one line is printed to standard error, and the exit code is 2. After a signal, one
    line is printed, and the exit code is 128 plus the signal's number.
    """
    debug = "--debug" in argv
    args = argparse.Namespace()
    try:
        module = registry.load("push_scripts", command)
        args = parse(parser_of(command, module), argv)
        quiet = silent(getattr(args, "quiet", False))
        with quiet, stopped_by_signals(lambda number: _last_words(number, command, argv, args)):
            code = module.main(args) or 0
        _leave_others()
        return code
    except KeyboardInterrupt as stop:
        number = stop.number if isinstance(stop, Stopped) else signal.SIGINT
        _last_words(number, command, argv, args)
        return 128 + number
    except BrokenPipeError:  # an OSError that `main` handles
        raise
    except (UserError, OSError) as error:
        if debug:
            raise
        shown = error if isinstance(error, UserError) else storage_error(error) or error
        show(f"error: {one_line(shown, LONGEST)}")
        return 2
    except Exception as error:  # a bug: print how to show the traceback
        if debug:
            raise
        if library := lacking(error):
            show(f"error: {command} needs {library}, which is not installed; run {registry.install_hint()}")
            return 2
        if "Symlink loop" in str(error):  # pathlib's message for a circular link
            show(f"error: {one_line(error, LONGEST)}: the link points to itself; use a different path")
            return 2
        if full := storage_error(error):
            show(f"error: {full}")
            return 2
        show(f"unexpected error: {type(error).__name__}: {one_line(error, LONGEST)}; add --debug to show the traceback")
        return 1


def _leave_others() -> None:
    """Close the connection between processes, because its threads would otherwise abort the first process that ends."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        distributed.destroy_process_group()


def _last_words(number: int, command: str, argv: list[str], args: argparse.Namespace) -> None:
    """Print what was saved before a signal, and how to resume. Ignore a closed terminal."""
    again, note = _again(argv, args)
    launched = "the same torchrun command, with processes that run: " if "TORCHELASTIC_RUN_ID" in os.environ else ""
    by = "" if number == signal.SIGINT else f" by {signal.Signals(number).name}"
    with suppress(OSError):
        show(f"stopped{by}; {_kept(command, argv)}: {launched}{shlex.join([PROGRAM, command, *again])}{note}")


def _again(argv: list[str], args: argparse.Namespace) -> tuple[list[str], str]:
    """Return (arguments that restart a command, note that links printed earlier remain valid or "").

    `args.links` is {option that has printed links: whether the option has a value}. These options are removed, because
    they would create more links after a restart.
    """
    links: dict[str, bool] = getattr(args, "links", {})
    again, words = [], iter(argv)
    for word in words:
        name, _, value = word.partition("=")
        if name not in links:
            again.append(word)
        elif links[name] and not value:
            next(words, None)
    return again, "; the printed links stay valid" if len(again) < len(argv) else ""


def _kept(command: str, argv: list[str]) -> str:
    """Describe the saved results that a restarted command will reuse.

    The command's `KEPT` contains a description of these results, and a pattern for the names of their files next to
    --out.
    """
    module = sys.modules.get(f"saliency_bench.push_scripts.{command.replace('-', '_')}")
    kept, pattern = getattr(module, "KEPT", ("", ""))
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--out", nargs="?", const="", default="")
    out = Path(parser.parse_known_args(argv)[0].out).absolute()
    if pattern and not any(out.parent.glob(pattern.format(out=glob.escape(out.name)))):
        kept = ""
    return f"{kept} are kept; resume with" if kept else "no incomplete file remains; start again with"


def overview() -> str:
    """Return the help text, which lists the commands."""
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
