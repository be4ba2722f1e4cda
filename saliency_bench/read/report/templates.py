"""Render HTML templates, with filters and settings that all pages share."""

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
    """Return a page as the text of a single file that loads no other files.

    `name` and `styles` are file names of the template and of style sheets.
    """
    style = Markup("".join(source(sheet) for sheet in styles))
    return _environment().get_template(name).render(style=style, version=__version__, **variables)


def source(name: str) -> str:
    """Return the text of a file in the folder of the templates."""
    return (HERE / name).read_text(encoding="utf-8")


@cache
def _environment() -> Environment:
    """Return the Jinja environment, in which filters have the names of their functions."""
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
    """Remove control characters from strings such as class names, because they could reverse the text direction."""
    return type(value)(without_controls(value)) if isinstance(value, str) else value


def _inline(svg: str) -> Markup:
    """Return the `<svg>` element of an SVG file without the XML declaration."""
    return Markup(svg[svg.index("<svg") :])


def _breakable(name: str) -> Markup:
    """Allow line breaks in a long name after "_", ":" and ","."""
    escaped = str(Markup.escape(name))
    for sign in "_:,":
        escaped = escaped.replace(sign, f"{sign}<wbr>")
    return Markup(escaped)


def _metric_name(text: str) -> Markup:
    """Return the display name of a metric with its identifier as a tooltip."""
    title = metric_title(text)
    return _breakable(text) if title == text else Markup('<span title="{}">{}</span>').format(text, title)
