"""How reliable the maps of explainers are that average random draws: the median over samples, and draws for more."""

from collections.abc import Mapping, Sequence
from math import ceil
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pyarrow.parquet as pq
from pydantic import Field

from saliency_bench.results.cell import CellKey, Count, StrictModel, explainer_names

LOW = 0.8  # below it an explainer is marked
GOAL = 0.9  # that the stated number of draws reaches
MOST = 1e9  # draws; more than these are not stated
FILE = "reliability.parquet"


class Reliability(StrictModel):
    """How reliable the maps of an explainer are.

    Attributes:
        median: of the reliability of the maps (`maps.reliability`).
        n: maps of which it is known.
        draws: that each map averages.
    """

    median: Annotated[float, Field(ge=0, le=1)]
    n: Annotated[Count, Field(ge=1)]
    draws: Annotated[Count, Field(ge=1)]

    @property
    def is_low(self) -> bool:
        """Return whether other draws would give quite another map."""
        return self.median < LOW

    @property
    def wanted(self) -> int | None:
        """Return how many draws would reach `GOAL`; None where they are reached, or no number can be told.

        By the formula of Spearman and Brown, k times the draws have the reliability k R / (1 + (k - 1) R).
        """
        if self.median >= GOAL or self.median == 0:
            return None
        draws = self.draws * GOAL * (1 - self.median) / (self.median * (1 - GOAL))
        return ceil(round(draws, 6)) if draws < MOST else None

    def __str__(self) -> str:
        text = f"{self.median:.2f}"
        if not self.is_low:
            return text
        wanted = self.wanted
        more = f"about {rounded(wanted):,} draws instead of {self.draws:,} would reach {GOAL}" if wanted else ""
        return f"{text} (below {LOW}{'; ' if more else ''}{more})"


def rounded(count: int) -> int:
    """Return a number of draws with two digits, rounded up: the median that it follows from is no more exact."""
    unit = 10 ** max(0, len(str(count)) - 2)
    return -(-count // unit) * unit


def reliabilities(folder: Path) -> dict[str, Reliability]:
    """Return {explainer id: how reliable its maps are} of a run; {} where no explainer averages random draws."""
    if not (path := folder / FILE).is_file():
        return {}
    table = pq.read_table(path, columns=["explainer_id", "reliability", "draws"])
    rows: dict[str, list[tuple[float, int]]] = {}
    columns = (table[name].to_pylist() for name in table.column_names)
    for explainer_id, value, draws in zip(*columns, strict=True):
        if value is not None:
            rows.setdefault(explainer_id, []).append((value, draws))
    return {
        key: Reliability(median=float(np.median([value for value, _ in pairs])), n=len(pairs), draws=pairs[0][1])
        for key, pairs in rows.items()
    }


def read_reliability(summary: Mapping[str, Any]) -> dict[str, Reliability]:
    """Return {explainer id: how reliable its maps are} of a summary; those of earlier versions have none."""
    return {key: Reliability.model_validate(about) for key, about in summary.get("reliability", {}).items()}


def reliability_line(summary: Mapping[str, Any], cells: Sequence[CellKey]) -> str:
    """Return the line below a table about maps that average random draws; "" where there are none."""
    known, names = read_reliability(summary), explainer_names(cells)
    listed = ", ".join(f"{name} {known[key]}" for key, name in names.items() if key in known)
    return f"Reliability of maps that average random draws, median: {listed}" if listed else ""
