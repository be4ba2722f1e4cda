"""Export rows as CSV, LaTeX and BibTeX.

All text is untrusted. Therefore, text is escaped so that it cannot become a spreadsheet formula or a TeX command.
"""

import re
from collections.abc import Iterable, Sequence
from itertools import groupby

from saliency_bench.board.view.rows import ShownRow, number, short
from saliency_bench.read.cell import RankSet, rank_text
from saliency_bench.utils.csv_text import csv_text

KINDS = {"csv": "text/csv", "tex": "application/x-tex", "bib": "application/x-bibtex"}  # {file extension: media type}
FIELDS = (
    "dataset", "model", "asks", "metric", "family", "higher_is_better", "explainer", "baseline", "own_method", "value",
    "low", "high", "n", "clusters", "rank", "rank_if_true", "unranked", "best", "status", "recomputed", "why", "beats",
    "not_beaten", "beats_if_true", "not_beaten_if_true", "passes", "seconds", "device", "submitters", "key",
)  # fmt: skip
OWN = r"$^\dagger$"  # marks a method that is not part of the package
TEX = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "#": r"\#", "%": r"\%", "_": r"\_",
    "^": r"\textasciicircum{}", "~": r"\textasciitilde{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "|": r"\textbar{}", '"': r"\textquotedbl{}",
}  # fmt: skip


def as_csv(rows: Iterable[ShownRow]) -> str:
    """Return the rows as CSV, with all columns and unrounded numbers."""
    return csv_text(FIELDS, ([_plain(getattr(row, name)) for name in FIELDS] for row in rows))


def _plain(value: object) -> object:
    if isinstance(value, tuple):
        is_rank = value and all(isinstance(part, int) for part in value)
        value = rank_text(value) if is_rank else "; ".join(map(str, value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    return value


def as_tex(rows: Sequence[ShownRow], address: str = "") -> str:
    """Return a LaTeX table with one section per set of comparable rows, in the displayed order.

    The table requires the LaTeX package booktabs.
    """
    lines = [
        r"% \usepackage{booktabs}",
        *([f"% {_comment(address)}"] if address else []),
        r"\begin{tabular}{lrrrl}",
        r"\toprule",
        r"Explainer & Score & 95\,\% interval & $n$ & Rank \\",
    ]
    for _, members in groupby(rows, key=lambda row: row.question):
        group = list(members)
        first = group[0]
        arrow = r"$\uparrow$" if first.higher_is_better else r"$\downarrow$"
        heading = ", ".join(map(tex, filter(None, (short(first.metric), first.dataset, first.model, first.asks))))
        lines += [r"\midrule", rf"\multicolumn{{5}}{{l}}{{{heading} {arrow}}} \\", r"\midrule"]
        lines += map(_tex_row, group)
    lines += [r"\bottomrule", r"\end{tabular}"]
    if any(row.own_method for row in rows):
        lines.append(rf"\par {OWN} Not part of saliency-bench; the submitter computed the maps.")
    return "\n".join([*lines, ""])


def _tex_row(row: ShownRow) -> str:
    name = rf"\textit{{{tex(row.explainer)}}}" if row.baseline else tex(row.explainer)
    name += OWN if row.own_method else ""
    value = "--" if row.value is None else number(row.value).replace("-", "$-$")
    value = rf"\textbf{{{value}}}" if row.best else value
    ends = "" if row.low is None or row.high is None else f"[{number(row.low)}, {number(row.high)}]".replace("-", "$-$")
    rank = _tex_ranks(row.rank) or (f"if true: {_tex_ranks(row.rank_if_true)}" if row.rank_if_true else row.status)
    return rf"{name} & {value} & {ends} & {row.n} & {rank} \\"


def _tex_ranks(rank: RankSet) -> str:
    return rank_text(rank).replace("-", "--")


def tex(text: str) -> str:
    """Escape text for LaTeX."""
    return "".join(TEX.get(sign, sign) for sign in text)


def _comment(text: str) -> str:
    """Remove line breaks from text, so that it can be written as a comment."""
    return " ".join(text.split())


def as_bib(rows: Iterable[ShownRow], board: str, address: str, day: str) -> str:
    """Return BibTeX entries for the board, as of `day` (YYYY-MM-DD), and for each submitter of the rows."""
    names = dict.fromkeys(name for row in rows for name in row.submitters)
    year = day[:4]
    entries = [_entry("saliency-bench-board", "{The saliency-bench contributors}", f"Leaderboard of {board}", address,
                      year, f"As of {day}, CC BY 4.0")]  # fmt: skip
    entries += [
        _entry(f"saliency-bench-{_slug(name)}", f"{{{tex(name)}}}", f"Results submitted by {name} to {board}", address,
               year, "CC BY 4.0")
        for name in names
    ]  # fmt: skip
    return "\n".join(entries)


def _entry(key: str, author: str, title: str, address: str, year: str, note: str) -> str:
    """Format a BibTeX entry. `author` must already be escaped."""
    url = [f"  howpublished = {{\\url{{{_url(address)}}}}},"] if address else []
    fields = [f"  author = {{{author}}},", f"  title = {{{tex(title)}}},", f"  year = {{{year}}},", *url]
    return "\n".join([f"@misc{{{key},", *fields, f"  note = {{{tex(note)}}},", "}", ""])


def _url(address: str) -> str:
    r"""Return a URL for \url. Characters that are special in LaTeX are escaped or removed."""
    return re.sub(r"[^\w:/?=&.,%+~#@-]", "", address).replace("%", r"\%").replace("#", r"\#")


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "unnamed"
