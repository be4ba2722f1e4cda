"""Wrap output to the width of the terminal, and colour it if the terminal supports this.

Output to files and pipes is plain text without colour. `NO_COLOR` and `TERM=dumb` disable colour.
"""

import re
import sys
from argparse import Action, ArgumentParser, HelpFormatter
from collections.abc import Iterator, Sequence
from shutil import get_terminal_size
from textwrap import wrap
from typing import Any, TextIO

from saliency_bench.errors import without_controls

WIDEST, UNLIMITED = 120, 10**6  # columns of help, and of output to a file or pipe
HEADING, OPTION = r"(?m)^\S.*:$|^usage:", r"(?<![\w-])--?[a-z][a-z-]*"
ITEM = r"(?m)^ {2,4}[a-z][\w.:/-]*(?=  )"


class Help(HelpFormatter):
    """Help formatter that uses the width of the terminal."""

    def __init__(self, prog: str):
        super().__init__(prog, width=min(get_terminal_size().columns, WIDEST) - 2)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return fitted(text, width)

    def _split_lines(self, text: str, width: int) -> list[str]:
        return wrap(" ".join(text.split()), width, break_on_hyphens=False)


def show_help(text: str) -> None:
    """Print a help text. On a terminal, headings are bold and options are coloured."""
    if (console := console_of(sys.stdout)) is None:
        print(text.rstrip("\n"))
        return
    from rich.text import Text

    styled = Text(text.rstrip("\n"))
    styled.highlight_regex(OPTION, "cyan")
    styled.highlight_regex(ITEM, "cyan")
    styled.highlight_regex(HEADING, "bold")
    console.print(styled, soft_wrap=True)


def show_table(rows: Sequence[Sequence[str]], console: Any) -> None:
    """Print a table with a header row, as wide as the console. Cells that are marked as best are green."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    header, *body = rows
    for name in header:
        table.add_column(Text(name), overflow="fold", no_wrap=name == header[0])
    for row in body:
        table.add_row(*(Text(without_controls(cell), style="green" if "best" in cell.split() else "") for cell in row))
    console.print(table)


def console_of(stream: TextIO) -> Any:
    """Return a rich console if the stream is a terminal, or None if it is a file or pipe."""
    if not stream.isatty():
        return None
    from rich.console import Console

    return Console(file=stream, width=get_terminal_size().columns, highlight=False, emoji=False, markup=False)


def narrower_than(text: str, stream: TextIO) -> Any:
    """Return a colourless rich console that is as wide as the terminal, or None if the text already fits."""
    width = get_terminal_size((UNLIMITED, 0)).columns
    if max(map(len, text.splitlines()), default=0) <= width:
        return None
    from rich.console import Console

    return Console(file=stream, width=width, highlight=False, emoji=False, markup=False, no_color=True)


def required_usage(parser: ArgumentParser) -> str:
    """Return a usage line with the required arguments, followed by "[options]" for all other arguments."""
    words = [parser.prog]
    for action in parser._actions:
        choices = "|".join(action.choices or ())
        name = str(action.metavar or (choices if len(choices) < 30 else "") or action.dest.upper())
        if not action.option_strings:
            words.append(_count(action, name))
        elif action.required:
            words.append(f"{action.option_strings[0]} {_count(action, name)}")
    return " ".join([*words, "[options]"]).replace("%", "%%")


def _count(action: Action, name: str) -> str:
    """Return the value of an option in the notation that usage lines use."""
    return {"+": f"{name} [{name} ...]", "*": f"[{name} ...]", "?": f"[{name}]"}.get(str(action.nargs), name)


def fitted(text: str, width: int | None = None) -> str:
    """Wrap text to a width.

    Prose is rewrapped, long rows of tables continue below their last column, and examples are not changed.

    Args:
        text: Text to wrap.
        width: Number of columns. If None, this is the terminal's width, or unlimited for a file or pipe.
    """
    width = get_terminal_size((UNLIMITED, 0)).columns if width is None else width
    blocks = _blocks(text.splitlines())
    return "\n".join(line for block, hanging in blocks for line in _wrapped(block, width, hanging))


def _blocks(lines: list[str]) -> Iterator[tuple[str, int | None]]:
    """Yield (paragraph, list item or table row as one line; indent of its continuation lines).

    If a block must not be rewrapped, the indent is None.
    """
    block, hanging, example = "", 0, False
    for line in lines:
        example = bool(line) and (example or line == "example:")
        row = re.match(r"\s*\S+(?: \S+)*?( {2,})(?=\S)", line)
        is_item = line.lstrip().startswith(("- ", "saliency-bench "))  # an item of a list, or a command
        if block and (not line or example or row or is_item or _indent(line) != hanging):
            yield block, hanging
            block = ""
        if not line or example:
            yield line, None
        elif row:
            yield line, row.end()
        elif block:
            block += f" {line.strip()}"
        else:
            block, hanging = line, _indent(line) + 2 * is_item
    if block:
        yield block, hanging


def _wrapped(line: str, width: int, hanging: int | None) -> list[str]:
    if hanging is None:
        return [line]
    return wrap(line, width, subsequent_indent=" " * hanging, break_long_words=False, break_on_hyphens=False)


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())
