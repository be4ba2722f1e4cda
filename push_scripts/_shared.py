"""Options that several commands share. The settings for runs come from `RunSpec`."""

import re
import sys
from argparse import Action, ArgumentParser, ArgumentTypeError, Namespace, _ActionsContainer
from collections.abc import Sequence
from pathlib import Path
from types import NoneType
from typing import Any, Literal, get_args, get_origin

from pydantic_core import PydanticUndefined

from saliency_bench.errors import UserError
from saliency_bench.spec import RunSpec, about, flag, hint, shown
from saliency_bench.terminal import console_of, narrower_than, show_table

PAPER = (".tex", ".md")  # file formats of tables for papers
FEW = 8  # maximum number of options that are listed without headings
UNCHANGED = object()  # use the default of RunSpec


def settings(parser: _ActionsContainer, *names: str, **defaults: object) -> None:
    """Add options for run settings. If there are many, they are grouped under headings.

    Args:
        parser: Parser of the command.
        names: Names of the settings (default: all).
        **defaults: Defaults that differ from those in `RunSpec`.
    """
    names = names or tuple(RunSpec.model_fields)
    groups: dict[str, _ActionsContainer] = {"": parser}
    for name in names:
        title = hint(name, "group") if len(names) > FEW else ""
        group = groups.get(title) or groups.setdefault(title, parser.add_argument_group(title))
        setting(group, name, default=defaults.get(name, UNCHANGED))


def setting(parser: _ActionsContainer, name: str, *, default: object = UNCHANGED, text: str = "") -> None:
    """Add an option for one run setting.

    Args:
        parser: Parser of the command.
        name: Name of the setting.
        default: Default value, if it differs from the one in `RunSpec`.
        text: Help text. By default, it consists of the setting's description and its default value.
    """
    field = RunSpec.model_fields[name]
    default = field.default if default is UNCHANGED else default
    required = default is PydanticUndefined
    parser.add_argument(
        flag(name),
        dest=name,
        required=required,
        default=None if required else default,
        help=text or about(name) + shown(default),
        **_kind(field.annotation, name),
    )


def _kind(annotation: Any, name: str) -> dict[str, Any]:
    """Return the argparse arguments (such as type, nargs and choices) for a setting with this annotation."""
    kinds = [kind for kind in get_args(annotation) or (annotation,) if kind is not NoneType]
    if bool in kinds:
        return {"action": "store_true"}
    if choices := [choice for kind in kinds if get_origin(kind) is Literal for choice in get_args(kind)]:
        return {"choices": choices}
    several = any(get_origin(kind) is tuple for kind in (annotation, *kinds))
    shape: dict[str, Any] = {"nargs": "+"} if several else {}
    if hint(name, "repeat"):
        shape["action"] = "extend"
    return shape | {"metavar": hint(name, "metavar"), "type": int if int in kinds else float if float in kinds else str}


def show_cells(cells: Sequence[Any], used: int) -> None:
    """Print the table of a run.

    Lines are drawn if the output is a terminal or the table is wider than COLUMNS. Otherwise, the table is plain text.
    """
    from saliency_bench.read.summary import lines_below, table, table_rows

    console = console_of(sys.stdout)
    if console is None:
        text = table(cells, used)
        if (console := narrower_than(text, sys.stdout)) is None:
            print(text)
            return
    show_table(table_rows(cells, used), console)
    for line in lines_below(cells):
        print(line)


def show_pairs(run: Any) -> None:
    """Print a table that compares all pairs of explainers on each metric.

    The table lists the difference, the test result and the number of samples.
    """
    from saliency_bench.read.analysis.pairs import pair_rows

    for title, rows in pair_rows(run):
        print(title)
        show_rows(rows)
        print()


def show_rows(rows: Sequence[Sequence[str]]) -> None:
    """Print a table with a header row. Lines are drawn on a terminal; in a file or pipe, the table is plain text."""
    if (console := console_of(sys.stdout)) is not None:
        show_table(rows, console)
        return
    from saliency_bench.read.summary import aligned

    print(aligned(rows))


def paper_table(parser: ArgumentParser) -> None:
    """Add --table, which writes a table for a paper, and the options that format this table."""
    group = parser.add_argument_group("table for a paper")
    group.add_argument(
        "--table", metavar="FILE", help="write the table as LaTeX (.tex, for booktabs) or Markdown (.md)"
    )
    group.add_argument("--digits", type=int, metavar="N", help="digits after the decimal point (default: 3)")
    group.add_argument("--labels", nargs="+", action="extend", metavar="NAME=TEXT",
                       help="label of an explainer or metric, as in gradcam=Grad-CAM")  # fmt: skip
    group.add_argument("--caption", metavar="TEXT", help="put the LaTeX into a table environment with this caption")
    group.add_argument("--ranks", action="store_true", help="print the possible ranks according to the paired test")
    group.add_argument("--no-intervals", action="store_true", help="leave out the 95 %% intervals")
    group.add_argument("--no-bold", action="store_true", help="print no numbers in bold")


def paper_style(args: Namespace) -> dict[str, Any]:
    """Return those arguments of a command that are options of `to_latex` and `to_markdown`.

    Raises:
        UserError: A table option is set without --table, or is invalid.
    """
    from saliency_bench.utils.storage import check_output_file

    style: dict[str, Any] = {}
    style |= {} if args.digits is None else {"digits": args.digits}
    style |= {"caption": args.caption} if args.caption else {}
    style |= {"labels": dict(_label(text) for text in args.labels)} if args.labels else {}
    style |= {name: wanted for name, given, wanted in (("ranks", args.ranks, True), ("bold", args.no_bold, False),
                                                        ("intervals", args.no_intervals, False)) if given}  # fmt: skip
    if args.table is None:
        if style and not getattr(args, "figure", None):
            raise UserError(f"options for the table ({', '.join(style)}) need --table FILE")
        return style
    if Path(args.table).suffix.lower() not in PAPER:
        raise UserError(f"--table {args.table} must end in {' or '.join(PAPER)}")
    check_output_file(Path(args.table))
    return style


def _label(text: str) -> tuple[str, str]:
    """Split NAME=TEXT into (name, label). NAME may itself contain options, as in rise:masks=100=RISE."""
    name, equals, label = text.rpartition("=")
    if not (name and equals and label):
        raise UserError(f"--labels '{text}' is not of the form NAME=TEXT, such as gradcam=Grad-CAM")
    return name, label


def write_paper_table(result: Any, path: str | None, style: dict[str, Any]) -> None:
    """Write a table for a paper, in the format given by the path's extension. If the path is None, write nothing."""
    from saliency_bench.utils.files import write_text

    if path:
        is_latex = Path(path).suffix.lower() == ".tex"
        write_text(Path(path), result.to_latex(**style) if is_latex else result.to_markdown(**style))


def given(args: Namespace, *without: str) -> dict[str, Any]:
    """Return those arguments of a command that are run settings."""
    return {name: getattr(args, name) for name in RunSpec.model_fields if hasattr(args, name) and name not in without}


def completed_as(action: Action, kind: str) -> None:
    """Let the tab key complete an argument in the same way as the option `--KIND`."""
    setattr(action, "kind", kind)  # noqa: B010


def namespace(parser: ArgumentParser) -> None:
    """Add --namespace."""
    parser.add_argument("--namespace", default="saliency-bench", metavar="NAME", type=namespace_name,
                        help="user or organisation on the Hub (default: saliency-bench)")  # fmt: skip


def namespace_name(text: str) -> str:
    """Return `text` after checking that it has the format of a user or organisation name."""
    if not re.fullmatch(r"[A-Za-z0-9][\w.-]*", text):
        raise ArgumentTypeError(f"'{text}' is not the name of a user or organisation")
    return text


def output(parser: ArgumentParser, json: str = "print JSON instead of text") -> None:
    """Add --json with this help text, and --quiet, which is handled by `saliency_bench.cli`."""
    forms = parser.add_mutually_exclusive_group()
    forms.add_argument("--json", action="store_true", help=json)
    forms.add_argument("--quiet", action="store_true", help="print warnings and errors only")
