"""The page of a suite: its tables with a plot each, its plan, and links to the reports of its runs."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from saliency_bench import __version__
from saliency_bench.reports import words
from saliency_bench.utils.files import write_text

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Shown:
    """A number as the page shows it.

    Attributes:
        text: the number.
        interval: its interval.
        best: whether it is marked as best.
        figure: the paper's, with the difference, where they are compared.
        why: why there is no number.
    """

    text: str
    interval: str = ""
    best: bool = False
    figure: str = ""
    why: str = ""


@dataclass(frozen=True)
class Section:
    """A table of the page.

    Attributes:
        name, title: of the table.
        axes: the names of the row axes.
        columns: the names of each column.
        rows: (names of the row, its numbers).
        notes: lines below the table.
        plot: SVG; "" for none.
    """

    name: str
    title: str
    axes: Sequence[str]
    columns: Sequence[Sequence[str]]
    rows: Sequence[tuple[Sequence[str], Sequence[Shown]]]
    notes: Sequence[str] = ()
    plot: str = ""


@dataclass(frozen=True)
class SuitePage:
    """The page of a suite.

    Attributes:
        title, paper: its head.
        smoke: whether stand-ins were run instead of datasets and models.
        sections: its tables.
        plan: a header and a row per run.
        plan_notes: lines above the plan.
        settings: what the paper says and what was run: a header and a row per item.
        runs: {name of a run: its report, relative to the page; "" for none}.
        failed: {name of a run: why it failed}.
    """

    title: str
    paper: str
    smoke: bool
    sections: Sequence[Section]
    plan: Sequence[Sequence[str]]
    plan_notes: Sequence[str] = ()
    settings: Sequence[Sequence[str]] = ()
    runs: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    def write(self, path: Path) -> None:
        """Write one HTML file that loads nothing else."""
        environment = Environment(loader=FileSystemLoader(HERE), autoescape=True, undefined=StrictUndefined,
                                  trim_blocks=True, lstrip_blocks=True)  # fmt: skip
        environment.filters["plot"] = lambda svg: Markup(svg[svg.index("<svg") :]) if svg else ""
        template = environment.get_template("suite.html.j2")
        style = Markup((HERE / "report.css").read_text(encoding="utf-8"))
        write_text(path, template.render(page=self, style=style, version=__version__, NONE=words.NONE))
