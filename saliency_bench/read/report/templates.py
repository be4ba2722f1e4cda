"""The templates of pages, with the filters and rules that all of them share."""

from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from saliency_bench import __version__
from saliency_bench.errors import without_controls
from saliency_bench.read.report import words
from saliency_bench.read.report.titles import metric_title, with_titles

HERE = Path(__file__).parent
FILTERS = (words.number, words.interval, words.percent, words.percent_interval, words.count, words.seconds,
           words.reasons, words.listed, words.short, words.signed, words.p_value, words.signed_interval,
           metric_title, with_titles)  # fmt: skip


def render(name: str, *, styles: tuple[str, ...] = ("report.css",), **variables: Any) -> str:
    """Return a page: one file, which loads nothing else.

    Args:
        name: of the template.
        styles: the files of style sheets.
        **variables: of the template.
    """
    style = Markup("".join(source(sheet) for sheet in styles))
    return _environment().get_template(name).render(style=style, version=__version__, **variables)


def source(name: str) -> str:
    """Return the text of a file beside the templates."""
    return (HERE / name).read_text(encoding="utf-8")


@cache
def _environment() -> Environment:
    """Return where templates are read, with the filters by the names of their functions."""
    environment = Environment(
        loader=FileSystemLoader(HERE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_plain,
    )
    environment.filters |= {function.__name__: function for function in FILTERS} | {
        "breakable": _breakable,
        "inline": _inline,
        "metric_name": _metric_name,
    }
    return environment


def _plain(value: Any) -> Any:
    """Drop control characters from texts on the page, names of classes among them: they could turn its direction."""
    return type(value)(without_controls(value)) if isinstance(value, str) else value


def _inline(svg: str) -> Markup:
    """Return the element of an SVG file without what comes before it."""
    return Markup(svg[svg.index("<svg") :])


def _breakable(name: str) -> Markup:
    """Allow breaks in a long name after these signs."""
    escaped = str(Markup.escape(name))
    for sign in "_:,":
        escaped = escaped.replace(sign, f"{sign}<wbr>")
    return Markup(escaped)


def _metric_name(text: str) -> Markup:
    """Return the display name of a metric, whose identifier is shown where the mouse rests on it."""
    title = metric_title(text)
    return _breakable(text) if title == text else Markup('<span title="{}">{}</span>').format(text, title)
