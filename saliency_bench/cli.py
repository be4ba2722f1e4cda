"""The command `saliency-bench`: one file in `push_scripts/` per sub-command, imported only when it is asked for.

A command is a module with a docstring (what it does, then an example), `arguments(parser)` and `main(args)`.
"""

import argparse
import os
import sys
from types import ModuleType

import saliency_bench
from saliency_bench import registry
from saliency_bench.errors import UserError

PROGRAM = "saliency-bench"


def main(argv: list[str] | None = None) -> int:
    argv = sys.argv[1:] if argv is None else argv
    if not argv or argv[0] in ("-h", "--help", "help"):
        print(overview())
        return 0
    if argv[0] == "--version":
        print(saliency_bench.__version__)
        return 0
    return guarded(argv[0], argv[1:])


def guarded(command: str, argv: list[str]) -> int:
    """Run a command; what the user can mend becomes one line on standard error and exit code 2."""
    debug = "--debug" in argv
    try:
        module = registry.load("push_scripts", command)
        args = parser_of(command, module).parse_args(argv)
        return module.main(args) or 0
    except KeyboardInterrupt:
        print(f"{PROGRAM}: stopped; nothing is half-written, start the same command again to go on", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader, say `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (UserError, OSError) as error:
        if debug:
            raise
        print(f"{PROGRAM}: error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except Exception as error:  # a fault of ours: still no page of traceback, but how to get it
        if debug:
            raise
        what = f"{type(error).__name__}: {' '.join(str(error).split())}"
        print(f"{PROGRAM}: unexpected error: {what}; --debug shows where", file=sys.stderr)
        return 1


def parser_of(command: str, module: ModuleType) -> argparse.ArgumentParser:
    about, _, example = (module.__doc__ or "").partition("\n\n")
    parser = argparse.ArgumentParser(
        prog=f"{PROGRAM} {command}",
        description=about,
        epilog=example,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    module.arguments(parser)
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    return parser


def overview() -> str:
    commands = registry.files("push_scripts")
    width = max(map(len, commands), default=0)
    lines = [f"  {name:<{width}}  {registry.summary(path)}" for name, path in commands.items()]
    return "\n".join(
        [
            "Measure whether a saliency map of an image classifier can be trusted.",
            "",
            f"usage: {PROGRAM} COMMAND [options]      ({PROGRAM} COMMAND --help shows an example)",
            "",
            *lines,
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
