"""Tables for papers in LaTeX or Markdown, with remarks on numbers as footnotes below the table."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from string import ascii_lowercase
from typing import TYPE_CHECKING

from saliency_bench.errors import UserError, unknown
from saliency_bench.read.analysis.tables import latex
from saliency_bench.read.cell import RARE, UNCOMPARED, CellResult, best, explainer_names, metric_names
from saliency_bench.read.summary import RARE_MEANS, in_order, lines_below, notes
from saliency_bench.utils.messages import counted

if TYPE_CHECKING:
    pass

NO_VALUE = "–"
MOST_DIGITS = 12
INTERVALS = "95 % intervals in brackets"
BOLD = "Bold: significantly better than every baseline, and no explainer is significantly better"
BOLD_ALONE = f"Bold: no explainer is significantly better ({UNCOMPARED})"
RANKS = "#: possible ranks according to the paired test"


@dataclass(frozen=True)
class TableEntry:
    """A cell of a table.

    Attributes:
        value: The number; None if it is missing, with the reason in `notes`.
        ends: Interval of the number; None if there is no interval.
        spread: Standard deviation to print after the value; None if there is none.
        rank: "1" or "1-3"; "" if there is no rank.
        best: Whether the number is printed in bold if bold is enabled.
        notes: Remarks on the number, which become footnotes.
        of_interval: Remarks on the interval, which are printed only if the interval is printed.
        text: Text to print instead of a number; "" to print the number.
        after: Text to print after the number and its interval.
        count: Whether the number is a whole number.
    """

    value: float | None = None
    ends: tuple[float, float] | None = None
    spread: float | None = None
    rank: str = ""
    best: bool = False
    notes: tuple[str, ...] = ()
    of_interval: tuple[str, ...] = ()
    text: str = ""
    after: str = ""
    count: bool = False


@dataclass(frozen=True)
class Line:
    """A row of a table; a rule separates two rows if their `block` differs."""

    names: tuple[str, ...]
    entries: Sequence[TableEntry]
    block: bool = False


@dataclass(frozen=True)
class PaperTable:
    """A table for a paper.

    Attributes:
        header: Names of the columns that label the rows.
        columns: Names of the columns that contain numbers.
        arrows: Arrow after the name of each column in `columns`; "" for no arrow.
        lines: Rows of the table.
        notes: Remarks on the whole table.
        tied: Explanation of bold numbers; "" if no number is bold.
        brackets: Explanation of the numbers in brackets.
    """

    header: tuple[str, ...]
    columns: tuple[str, ...]
    arrows: tuple[str, ...]
    lines: Sequence[Line]
    notes: tuple[str, ...] = ()
    tied: str = BOLD
    brackets: str = INTERVALS


class PaperTables:
    """Base class of results that can be printed as a table in a paper."""

    def paper_table(self) -> PaperTable:
        """Return the table."""
        raise NotImplementedError

    def to_latex(
        self, *, bold: bool = True, digits: int = 3, labels: Mapping[str, str] | None = None, caption: str = "",
        intervals: bool = True, ranks: bool = False,
    ) -> str:  # fmt: skip
        r"""Return the table in LaTeX (requires the package booktabs), with footnotes below the table.

            print(run.to_latex(digits=2, labels={"gradcam": "Grad-CAM", "saliency_miou": "mIoU"}))

        Args:
            bold: Whether to print the best explainers of each metric in bold, as marked in `Run.to_pandas`.
            digits: Digits after the decimal point.
            labels: {name of an explainer or metric: text to print instead}. A label or caption with a backslash or a
                pair of $ is treated as LaTeX and inserted unchanged; all others are escaped.
            caption: If given, the table is placed in a `table` environment with this caption.
            intervals: Whether to print 95 % intervals.
            ranks: Whether to print the possible ranks of each explainer according to the paired test.

        Raises:
            UserError: A name in `labels` is not in the table, two rows or columns get the same name, or
                `digits` is not a whole number from 0 to 12.
        """
        table = _labelled(self.paper_table(), labels or {})
        marks, below = _footnotes(table, bold, intervals, ranks)
        show = _Latex(_checked(digits), bold, intervals, ranks)
        arrows = map(latex, table.arrows)
        header = [
            *map(_escaped, table.header),
            *(f"{_escaped(name)} {arrow}".strip() for name, arrow in zip(table.columns, arrows, strict=True)),
        ]
        lines = [rf"\begin{{tabular}}{{{'l' * len(table.header)}{'r' * len(table.columns)}}}", r"\toprule",
                 " & ".join(header) + r" \\"]  # fmt: skip
        for _, block in groupby(table.lines, key=lambda line: line.block):
            lines.append(r"\midrule")
            for line in block:
                cells = [show.cell(entry, marks) for entry in line.entries]
                lines.append(" & ".join([*map(_escaped, line.names), *cells]) + r" \\")
        lines += [r"\bottomrule", r"\end{tabular}"]
        if below:
            texts = [(rf"\textsuperscript{{{mark}}}~" if mark else "") + latex(text) for mark, text in below]
            lines += [
                "",
                r"\smallskip",
                r"\noindent\begin{minipage}{\linewidth}\footnotesize",
                "\\\\\n".join(texts),
                r"\end{minipage}",
            ]
        if caption:
            lines = [r"\begin{table}", r"\centering", rf"\caption{{{_escaped(caption)}}}", *lines, r"\end{table}"]
        return "\n".join([*lines, ""])

    def to_markdown(
        self, *, bold: bool = True, digits: int = 3, labels: Mapping[str, str] | None = None, caption: str = "",
        intervals: bool = True, ranks: bool = False,
    ) -> str:  # fmt: skip
        """Return the table in Markdown, with footnotes below the table.

        Args:
            bold: As in `to_latex`.
            digits: As in `to_latex`.
            labels: As in `to_latex`.
            caption: Line to print above the table; "" for no line.
            intervals: As in `to_latex`.
            ranks: As in `to_latex`.

        Raises:
            UserError: As for `to_latex`.
        """
        table = _labelled(self.paper_table(), labels or {})
        marks, below = _footnotes(table, bold, intervals, ranks)
        show = _Markdown(_checked(digits), bold, intervals, ranks)
        header = [
            *table.header,
            *(f"{name} {arrow}".strip() for name, arrow in zip(table.columns, table.arrows, strict=True)),
        ]
        rows = [[*line.names, *(show.cell(entry, marks) for entry in line.entries)] for line in table.lines]
        rule = ["---"] * len(table.header) + ["---:"] * len(table.columns)
        rows = [[_one_cell(text) for text in row] for row in [header, rule, *rows]]
        lines = [f"{caption}\n"] * bool(caption) + [f"| {' | '.join(row)} |" for row in rows]
        lines += [f"\n{f'<sup>{mark}</sup> ' * bool(mark)}{text}" for mark, text in below]
        return "\n".join([*lines, ""])


@dataclass(frozen=True)
class _Markdown:
    """Formatter of a table's numbers in Markdown."""

    digits: int
    bold: bool
    intervals: bool
    ranks: bool

    def cell(self, entry: TableEntry, marks: Mapping[str, str]) -> str:
        """Return a cell with the marks of its footnotes."""
        marked = "".join(sorted(marks[note] for note in _remarks(entry, self.intervals) if note in marks))
        if entry.text or entry.value is None:
            return self.plain(entry.text or NO_VALUE) + (self.raised(marked) if marked else "")
        number = self.number(entry.value, entry.count)
        if self.bold and entry.best:
            number = self.strong(number)
        parts = [number]
        if entry.spread is not None:
            parts.append(self.plain(f"± {self.number(entry.spread)}"))
        if self.intervals and entry.ends is not None:
            parts.append(self.small(f"[{self.number(entry.ends[0])}, {self.number(entry.ends[1])}]"))
        if self.ranks and entry.rank:
            parts.append(self.small(self.plain(f"#{entry.rank.replace('-', NO_VALUE)}")))
        if entry.after:
            parts.append(self.small(self.plain(entry.after)))
        return " ".join(parts) + (self.raised(marked) if marked else "")

    def number(self, value: float, count: bool = False) -> str:
        """Return a number as text. A number that rounds to zero has no sign."""
        text = f"{value:,.0f}" if count else f"{value:.{self.digits}f}"
        return self.plain((text.lstrip("-") if not text.strip("-0.") else text).replace("-", "−"))

    def plain(self, text: str) -> str:
        """Return text with special characters escaped."""
        return text

    def strong(self, text: str) -> str:
        return f"**{text}**"

    def small(self, text: str) -> str:
        """Return text that is printed in small type if the format supports it."""
        return text

    def raised(self, text: str) -> str:
        """Return the mark of a footnote."""
        return f"<sup>{text}</sup>"


class _Latex(_Markdown):
    """Formatter of a table's numbers in LaTeX."""

    def plain(self, text: str) -> str:
        """Return text with the special characters of LaTeX escaped."""
        return latex(text)

    def strong(self, text: str) -> str:
        return rf"\textbf{{{text}}}"

    def small(self, text: str) -> str:
        """Return text in small type."""
        return rf"{{\scriptsize {text}}}"

    def raised(self, text: str) -> str:
        """Return the mark of a footnote with zero width, so that digits stay aligned."""
        return rf"\rlap{{\textsuperscript{{{text}}}}}"


def _footnotes(
    table: PaperTable, bold: bool, intervals: bool, ranks: bool
) -> tuple[dict[str, str], list[tuple[str, str]]]:
    """Return ({remark on cells: mark}, [(mark, text) of each line below the table]).

    A remark that applies to all numbers has the mark "".
    """
    entries = [entry for line in table.lines for entry in line.entries]
    numbers = [entry for entry in entries if entry.value is not None]
    times = Counter(note for entry in entries for note in _remarks(entry, intervals))
    general = [note for note, count in times.items() if count == len(entries) > 0]
    marks = dict(zip((note for note in times if note not in general), _letters(), strict=False))
    explained = [table.brackets] * (intervals and any(entry.ends for entry in numbers))
    explained += [table.tied] * (bold and bool(table.tied) and any(entry.best for entry in numbers))
    explained += [RANKS] * (ranks and any(entry.rank for entry in numbers))
    below = [(mark, _sentence(note)) for note, mark in marks.items()]
    whole = [*table.notes, *general, *explained]
    return marks, [*below, *([("", " ".join(map(_sentence, whole)))] if whole else [])]


def _remarks(entry: TableEntry, intervals: bool) -> list[str]:
    """Return the remarks on a number, without repetitions."""
    return list(dict.fromkeys([*entry.notes, *(entry.of_interval if intervals else ())]))


def _letters() -> Sequence[str]:
    """Return the marks of footnotes: a to z, then aa, bb and so on."""
    return [letter * times for times in range(1, 5) for letter in ascii_lowercase]


def _sentence(text: str) -> str:
    """Return a remark as a sentence: with a full stop, and a capital letter unless it starts with an identifier."""
    first = text.partition(" ")[0]
    text = text if set(first) & set("_:/") else text[:1].upper() + text[1:]
    return text if text.endswith((".", "!", "?")) else f"{text}."


def _labelled(table: PaperTable, labels: Mapping[str, str]) -> PaperTable:
    """Return the table with labels instead of names; raise UserError for an invalid label."""
    check_labels(table, labels)
    lines = [
        Line(tuple(labels.get(name, name) for name in line.names), line.entries, line.block) for line in table.lines
    ]
    columns = tuple(labels.get(name, name) for name in table.columns)
    for kind, names in (("rows", [line.names for line in lines]), ("columns", [(name,) for name in columns])):
        twice = [name for name, count in Counter(names).items() if count > 1]
        if labels and twice:
            raise UserError(f"two {kind} are called {', '.join(twice[0])}; use different labels")
    notes = tuple(_renamed(note, labels) for note in table.notes)
    header = tuple(labels.get(name, name) for name in table.header)
    return replace(table, header=header, columns=columns, lines=lines, notes=notes)


def check_labels(table: PaperTable, labels: Mapping[str, str]) -> None:
    """Raise UserError for a label whose name is not in the table."""
    names = [name for line in table.lines for name in line.names]
    for name in labels:
        if name not in (known := dict.fromkeys([*table.header, *table.columns, *names])):
            raise unknown("name in labels", name, known)


def _renamed(note: str, labels: Mapping[str, str]) -> str:
    """Replace names in a remark with their labels. Names end at a space, colon, comma or semicolon."""
    words = [(word.rstrip(":,;"), word) for word in note.split(" ")]
    return " ".join(labels[name] + word[len(name) :] if name in labels else word for name, word in words)


def _checked(digits: int) -> int:
    """Return `digits`; raise UserError if it is not a valid number of digits."""
    if isinstance(digits, bool) or not isinstance(digits, int) or not 0 <= digits <= MOST_DIGITS:
        raise UserError(f"digits must be a whole number from 0 to {MOST_DIGITS}; got {digits!r}")
    return digits


def _escaped(text: str) -> str:
    r"""Escape text for LaTeX, unless a backslash or a pair of $ shows that the text is already LaTeX."""
    return text if "\\" in text or text.count("$") in (2, 4, 6) else latex(text)


def _one_cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def table_of_cells(cells: Sequence[CellResult], used: int, name: str = "") -> PaperTable:
    """Return the table of a run, with one row per explainer, baselines below a rule, and one column per metric.

    Args:
        cells: Cells of one run.
        used: Number of samples that the run covers.
        name: Description of the run, such as its model and dataset.
    """
    metrics, explainers, marked = metric_names(cells), explainer_names(cells), best(cells)
    by_ids = {(cell.explainer_id, cell.metric_id): cell for cell in cells}
    arrows = {cell.metric_id: "↑" if cell.higher_is_better else "↓" for cell in cells}
    baselines = {cell.explainer_id: cell.baseline for cell in cells}
    lines = [
        Line(
            (explainers[key],), [_entry(by_ids.get((key, metric)), used, marked) for metric in metrics], baselines[key]
        )
        for key in in_order(cells)
    ]
    uncompared = any(cell.cell_id in marked and not cell.beats_baselines for cell in cells)
    about = f"mean over {counted(used, 'image')}" + (f" ({name})" if name else "")
    return PaperTable(("explainer",), tuple(metrics.values()), tuple(arrows[metric] for metric in metrics), lines,
                      (about, *notes(cells), *lines_below(cells)), BOLD_ALONE if uncompared else BOLD)  # fmt: skip


def _entry(cell: CellResult | None, used: int, marked: frozenset[str]) -> TableEntry:
    """Return the entry of a cell; an empty entry if the run has no such cell."""
    if cell is None:
        return TableEntry()
    if cell.without:
        return TableEntry(notes=(f"no score: {cell.without}",))
    return TableEntry(
        cell.value, cell.ends, rank=cell.ranks, best=cell.cell_id in marked, notes=tuple(remarks(cell, used)),
        of_interval=tuple(interval_remarks(cell)),
    )  # fmt: skip


def remarks(cell: CellResult, used: int) -> list[str]:
    """Return remarks on the value of a cell."""
    texts = [f"over {cell.n:,} of {used:,} images"] * (cell.n != used)
    effective = f", equivalent to {cell.independent:.0f} of equal size" * (round(cell.independent) < cell.clusters)
    texts += [f"in {counted(cell.clusters, 'group')}{effective}"] * (cell.clusters < cell.n)
    return texts + [f"few training runs ({cell.trainings})"] * cell.few_trainings


def interval_remarks(cell: CellResult) -> list[str]:
    """Return remarks on the interval of a cell."""
    texts = ["few images"] * cell.few + ["approximate interval"] * cell.approximate
    return texts + [f"{RARE}: {RARE_MEANS}"] * cell.rare
