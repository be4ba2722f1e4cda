"""Generate the HTML of a board's page for a URL. Templates escape all text. The HTML contains no scripts."""

from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from jinja2 import Environment, FileSystemLoader, StrictUndefined

import saliency_bench
from saliency_bench import registry
from saliency_bench.board.row import Row
from saliency_bench.board.submission_schema import LICENSE
from saliency_bench.board.submit import SubmissionPlan
from saliency_bench.board.view import board_plots, export
from saliency_bench.board.view.archive import Archive
from saliency_bench.board.view.board_pictures import Pictured
from saliency_bench.board.view.compared import ComparedSample, pairwise, samples_of
from saliency_bench.board.view.core import Core
from saliency_bench.board.view.matrix import OFFICIAL, TASKS, is_official, matrix
from saliency_bench.board.view.row_groups import (
    PER_PAGE,
    RowGroup,
    choices,
    chosen,
    grouped,
    is_verified,
    matches,
    only_known,
    ordered,
    page_of,
)
from saliency_bench.board.view.rows import FAMILIES, ShownRow, amount, number, short
from saliency_bench.board.view.standings import Standings, best_sets
from saliency_bench.board.view.state import ALWAYS, COLUMNS, FILTERS, PAGES, SORTS, View
from saliency_bench.errors import UserError
from saliency_bench.read.cell import rank_text
from saliency_bench.read.report.titles import metric_title
from saliency_bench.utils.messages import counted

TRACK = 96  # width in pixels of the small interval next to a score


class Page:
    """All pages of a board.

    Args:
        archive: The board.
        core: The board's core: the datasets over which scores are averaged. None if there is no core.
    """

    def __init__(self, archive: Archive, core: Core | None = None):
        self.archive = archive
        # A core is used only if at least one of its datasets is published together with its classifier.
        self.core = core if core is not None and any(cell.fixed for cell in core.datasets) else None
        core = self.core
        self.standings = Standings(archive, core)

    def show(self, query: object) -> dict[str, str]:
        """Return the page for the query string of a URL.

        The result is a dict with the keys "query" (the canonical query string), "title", "head" (the tabs), "form" and
        "body".
        """
        view = only_known(View.read(query if isinstance(query, str) else ""), self.archive.rows)
        if view.row not in self.archive.by_key:
            view = replace(view, row="", other="")
        if view.other not in self.archive.by_key or view.other == view.row:
            view = replace(view, other="")
        words = self._common(view) | getattr(self, f"_{view.tab}")(view)
        parts = {name: _render(f"{name}.html.j2", words) for name in ("head", "form")}
        title = f"{PAGES[view.tab]} – {self.archive.name}"
        return {"query": view.query(), "title": title, **parts, "body": _render(f"{view.tab}.html.j2", words)}

    def export(self, kind: object, query: object, address: object = "") -> dict[str, str]:
        """Export all rows that a query string selects, even if the page shows them in several parts.

        Arguments are untrusted and can have any type.

        Args:
            kind: One of `export.KINDS`.
            query: Query string of the page's URL.
            address: URL of the page. The URL is written into the file, so that readers can find the page.

        Returns:
            The file as {"name", "type": media type, "text"}.

        Raises:
            UserError: The kind is unknown.
        """
        if not isinstance(kind, str) or kind not in export.KINDS:
            raise UserError(f"unknown export format; use one of {', '.join(export.KINDS)}")
        view = only_known(View.read(query if isinstance(query, str) else ""), self.archive.rows)
        rows = chosen(self.archive.rows, view)
        link = f"{address}"[:2000] if isinstance(address, str) else ""
        text = {
            "csv": lambda: export.as_csv(rows),
            "tex": lambda: export.as_tex(rows, link),
            "bib": lambda: export.as_bib(rows, self.archive.name, link, self.archive.updated[:10]),
        }[kind]()
        return {"name": f"leaderboard.{kind}", "type": export.KINDS[kind], "text": text}

    def _common(self, view: View) -> dict[str, Any]:
        rows = self.archive.rows
        further = [row for row in rows if row.dataset not in self._core_names]
        official = {row.dataset for row in further if is_official(row)}
        names = sorted({row.dataset for row in further}, key=lambda name: (name not in official, name.casefold()))
        datasets = [*self._core_names, *names]
        present = {row.dataset for row in rows}
        return {
            "view": view, "pages": self._pages, "archive": self.archive, "core": self.core, "filters": FILTERS,
            "datasets": [name for name in datasets if name in present], "choices": choices(rows, view),
            "columns": COLUMNS, "always": ALWAYS, "sorts": SORTS, "families": FAMILIES, "total": len(rows),
            "listed": view.is_list,
        }  # fmt: skip

    @property
    def _pages(self) -> dict[str, str]:
        return {name: title for name, title in PAGES.items() if name != "overall" or self.core}

    @cached_property
    def _core_names(self) -> list[str]:
        return list(dict.fromkeys(cell.dataset for cell in self.core.datasets)) if self.core else []

    def _board(self, view: View) -> dict[str, Any]:
        words = self._list(view)
        overview = None if view.is_list else matrix(self.archive.rows, view)
        if overview is not None:
            scene = View(dataset=overview.scene[:1], model=overview.scene[1:2], family=view.family)
            rest = [row for row in self.archive.rows if matches(row, scene) and not is_verified(row)]
            rest = [] if not overview.official else ordered(rest, View())
            words |= {"unverified": grouped(rest[:PER_PAGE], self.archive.rows), "unverified_count": len(rest)}
            words |= {"tracks": {row.key: track for group in words["unverified"] for row, track in _tracks(group)}}
            families = {row.family for row in self.archive.rows if (row.dataset, row.model) == overview.scene[:2]}
            words |= {"grouped": True, "tasks": [name for name in FAMILIES if name in families]}
        return words | {"matrix": overview}

    def _list(self, view: View) -> dict[str, Any]:
        rows = chosen(self.archive.rows, view)
        part, at, parts = page_of(rows, view.number)
        before = rows[rows.index(part[0]) - 1] if at > 1 and part else None
        groups = grouped(part, self.archive.rows, before) if view.sort == "score" else [RowGroup(part, [])] * bool(part)
        columns = [name for name in COLUMNS if name in view.columns]
        if view.sort != "score":  # there are no headings, so each row displays dataset and metric
            columns = [name for name in COLUMNS if name in view.columns or name in ("dataset", "model", "metric")]
        tracks = {row.key: track for group in groups for row, track in _tracks(group)}
        by_score = view.sort == "score"
        unverified = [group for group in groups if by_score and not group.is_verified]
        words = {"groups": [group for group in groups if group not in unverified], "unverified": unverified,
                 "unverified_count": sum(not is_verified(row) for row in rows), "shown": len(rows),
                 "open_unverified": bool(view.status) or len(unverified) == len(groups) or at > 1,
                 "shown_columns": columns, "tracks": tracks}  # fmt: skip
        words |= {"number_of_parts": parts, "part": at, "grouped": view.sort == "score"}
        return words | {"opened": self._opened(view) if view.row else None}

    def _opened(self, view: View) -> dict[str, Any]:
        """Return the template variables that describe the open row and the row compared with it."""
        shown, row = self.archive.by_key[view.row]
        words: dict[str, Any] = {"shown": shown, "row": row, "problem": "", "samples": {}, "other": None}
        words["pictured"] = Pictured({}, "")
        try:
            words["samples"] = samples_of(self.archive, view.row)
            words["pictured"] = self._pictured(row, words["samples"])
            alike = [
                other
                for other in self.archive.rows
                if other.question == shown.question and other.key != shown.key and other.has_samples
            ]
            words["rivals"] = ordered(alike, View()) if shown.has_samples else []
            if view.other:
                words |= self._compare(view, shown)
        except UserError as error:
            words["problem"] = str(error)
        return words

    def _pictured(self, row: Row, samples: dict[str, list[ComparedSample]]) -> Pictured:
        """Return pictures of the samples' maps. If the maps cannot be read, return a caption that states the reason."""
        ids = {sample.image_id for group in samples.values() for sample in group}
        try:
            return self.archive.pictured(row, ids) if ids else Pictured({}, "")
        except UserError as error:  # display the samples without maps
            return Pictured({}, str(error).replace(f"{self.archive.root}/", ""))

    def _compare(self, view: View, shown: ShownRow) -> dict[str, Any]:
        """Compare the open row with another row, or return the reason why the two rows cannot be compared."""
        other, other_row = self.archive.by_key[view.other]
        if other.question != shown.question:
            why = "only rows with the same dataset, model, target and metric can be compared"
            return {"problem": f"{other.explainer} and {shown.explainer} are not comparable: {why}"}
        if not (shown.has_samples and other.has_samples):
            return {"problem": f"{other.explainer} or {shown.explainer} has no scores for individual samples"}
        result = pairwise(self.archive, self.archive.by_key[view.row][1], other_row)
        plot = board_plots.pairs(result.dots.tolist(), shown.explainer, other.explainer)
        return {"other": other, "pair": result, "plot": plot}

    def _plots(self, view: View) -> dict[str, Any]:
        view, rows = board_plots.plotted(self.archive.rows, view)
        rows, left_out = board_plots.fewer(rows)
        return {
            "left_out": left_out, "chosen": view,
            "scenes": board_plots.scenes(self.archive.rows), "metrics": board_plots.metrics_of(rows),
            "scatter": board_plots.scatter(rows, view.x, view.y), "cost": board_plots.cost(rows, view.y, view.cost),
        }  # fmt: skip

    def _overall(self, view: View) -> dict[str, Any]:
        tables = [self.standings.table(metric) for metric in self.standings.metrics]
        best = sorted(best_sets(tables).items(), key=lambda entry: (-entry[1][0], entry[1][1], entry[0]))
        return {"standings": self.standings, "tables": tables, "best": best}

    def _about(self, view: View) -> dict[str, Any]:
        metrics = sorted({row.metric.partition("(")[0]: row for row in self.archive.rows}.items())
        described = [(name, row, registry.summary(registry.score_file("metrics", name)))
                 for name, row in metrics if name in registry.names("metrics")]  # fmt: skip
        return {"metrics": described, "license": LICENSE, "version": saliency_bench.__version__}


def preview(proposed: SubmissionPlan | None = None, problem: str = "", sent: str = "") -> str:
    """Return HTML that shows the cells that a submission adds, an error message, or a link to the pull request."""
    return _render("preview.html.j2", {"proposed": proposed, "problem": problem, "sent": sent})


def _tracks(group: RowGroup) -> list[tuple[ShownRow, tuple[float, float, float] | None]]:
    """Return the positions of each row's low end, value and high end on the group's axis, or None if it has no value.

    If the list is sorted by a column other than the score, the rows of a group are not comparable and have no axis.
    """
    everyone = [*group.rows, *group.baselines]
    if len({row.question for row in everyone}) != 1:
        return [(row, None) for row in group.rows]
    ends = [value for row in everyone for value in (row.low, row.value, row.high) if value is not None]
    low, high = (min(ends), max(ends)) if ends else (0.0, 0.0)
    scale = (TRACK - 8) / (high - low) if high > low else 0.0

    def place(value: float | None, otherwise: float) -> float:
        return round(4 + scale * ((otherwise if value is None else value) - low), 1)

    def track(row: ShownRow) -> tuple[float, float, float] | None:
        if row.value is None:
            return None
        return place(row.low, row.value), place(row.value, 0), place(row.high, row.value)

    return [(row, track(row)) for row in group.rows]


def _render(name: str, words: dict[str, Any]) -> str:
    return TEMPLATES.get_template(name).render(words)


TEMPLATES = Environment(
    loader=FileSystemLoader(Path(__file__).parent),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
TEMPLATES.filters |= {
    "number": number, "ranks": rank_text, "title_of": metric_title, "short": short, "amount": amount,
    "counted": counted,
    "host": lambda link: urlsplit(link).netloc,  # displayed, so that readers see where a link leads
}  # fmt: skip
TEMPLATES.globals |= {"TRACK": TRACK, "OFFICIAL": OFFICIAL, "TASKS": TASKS}
