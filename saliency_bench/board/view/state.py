"""Convert the state of the page (`View`) to and from the query string of its URL.

Query strings are untrusted, so unknown fields, unknown values and unprintable characters are ignored.
"""

from dataclasses import dataclass, fields, replace
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode

from saliency_bench.board.known import STATUSES

LONGEST = 12_000  # maximum length of a query string in characters
LONGEST_VALUE = 200
MOST_FIELDS = 400
MOST_CHOSEN = 50  # maximum number of values of a filter
PAGES: Final = {"board": "Scores", "overall": "Overall", "plots": "Plots", "about": "How we check"}
# {column: heading}, in the order of the table
COLUMNS: Final = {
    "explainer": "Explainer",
    "dataset": "Dataset",
    "model": "Model",
    "metric": "Metric",
    "score": "Score and 95 % interval",
    "rank": "Rank",
    "n": "n",
    "status": "Status",
    "passes": "Passes per image",
    "seconds": "Seconds per image",
    "device": "Device",
    "submitters": "Submitted by",
}
ALWAYS: Final = ("explainer", "score")
USUAL: Final = ("explainer", "score", "rank", "n", "status", "passes", "submitters")
FILTERS: Final = ("dataset", "model", "family", "metric", "explainer", "status")
SORTS: Final = tuple(name for name in COLUMNS if name != "device")


@dataclass(frozen=True)
class View:
    """Selections of a page. Each filter (`dataset` to `status`) contains the accepted values; () accepts all values.

    Attributes:
        tab: One of PAGES.
        search: Words that a displayed row must contain.
        sort: A column in SORTS. "score" sorts rows best first under each heading.
        reverse: Whether to reverse the order of `sort`.
        columns: Columns of the table: all of ALWAYS, and some of COLUMNS.
        number: Number of the displayed part of a long table, starting at 1.
        row: Key of the open row.
        other: Key of the row to compare the open row with.
        x: Metric on the horizontal axis of a plot.
        y: Metric on the vertical axis of a plot.
        cost: Unit of the cost axis: "passes" or "seconds".
        as_list: Whether to display a list instead of a matrix.
    """

    tab: str = "board"
    dataset: tuple[str, ...] = ()
    model: tuple[str, ...] = ()
    explainer: tuple[str, ...] = ()
    family: tuple[str, ...] = ()
    metric: tuple[str, ...] = ()
    status: tuple[str, ...] = ()
    search: str = ""
    sort: str = "score"
    reverse: bool = False
    columns: tuple[str, ...] = USUAL
    number: int = 1
    row: str = ""
    other: str = ""
    x: str = ""
    y: str = ""
    cost: str = "passes"
    as_list: bool = False

    @property
    def is_list(self) -> bool:
        """Return whether to display a list.

        This is the case on request, or if filters, an order or columns are selected.
        """
        plain = View(tab=self.tab, dataset=self.dataset, model=self.model, family=self.family)
        parts = ("metric", "explainer", "status", "search", "sort", "reverse", "columns", "number")
        return self.as_list or any(getattr(self, name) != getattr(plain, name) for name in parts)

    def query(self, **changes: Any) -> str:
        """Return the query string of this view with these changes, without the question mark."""
        view, usual = replace(self, **changes), View()
        pairs = [
            (field.name, text)
            for field in fields(View)
            if (value := getattr(view, field.name)) != getattr(usual, field.name)
            for text in (value if field.name in FILTERS else [_written(value)])
        ]
        return urlencode(pairs)

    @classmethod
    def read(cls, query: str) -> "View":
        """Parse a query string into a view. Missing or invalid fields get their default values."""
        try:
            pairs = parse_qsl(query[:LONGEST].removeprefix("?"), max_num_fields=MOST_FIELDS)
        except ValueError:  # too many fields
            pairs = []
        given: dict[str, list[str]] = {}
        for name, text in pairs:
            if printable := "".join(filter(str.isprintable, text))[:LONGEST_VALUE].strip():
                given.setdefault(name, []).append(printable)
        single: dict[str, str] = {
            field.name: given[field.name][-1]
            for field in fields(cls)
            if field.name in given and field.name not in FILTERS
        }
        values: dict[str, Any] = single | {"columns": _columns([text for name, text in pairs if name == "columns"])}
        values |= {name: single.get(name) == "yes" for name in ("reverse", "as_list")}
        values["number"] = _number(single.get("number", "1"))
        for name, allowed in (("tab", PAGES), ("sort", SORTS), ("cost", ("passes", "seconds"))):
            if single.get(name) not in allowed:
                values.pop(name, None)
        values |= {name: tuple(dict.fromkeys(given.get(name, ())))[:MOST_CHOSEN] for name in FILTERS}
        values["status"] = tuple(name for name in STATUSES if name in values["status"])
        return cls(**values)


def _written(value: object) -> str:
    if isinstance(value, tuple):
        return ".".join(value)
    return "yes" if value is True else str(value)


def _columns(texts: list[str]) -> tuple[str, ...]:
    """Parse column names, either joined by dots ("a.b") or in separate fields, and return them in the table's order."""
    named = {name for text in texts for name in text.split(".")} & set(COLUMNS)
    return tuple(name for name in COLUMNS if name in named or name in ALWAYS) if named else USUAL


def _number(text: str) -> int:
    """Parse a positive integer of at most 6 digits, or return 1 for any other text."""
    return max(1, int(text)) if text.isascii() and text.isdigit() and len(text) < 7 else 1
