"""Reliability of maps that average random draws: the median over samples, and the recommended number of draws."""

from collections.abc import Mapping, Sequence
from math import ceil
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pyarrow.parquet as pq
from pydantic import Field

from saliency_bench.read.cell import CellKey, Count, StrictModel, explainer_names

LOW = 0.8  # an explainer with a lower reliability is marked
GOAL = 0.9  # reliability that the recommended number of draws would reach
KNOWN = 0.5  # below this reliability, the recommended number of draws would mostly be noise
MOST = 1e9  # largest number of draws that is recommended
FILE = "reliability.parquet"


class Reliability(StrictModel):
    """Reliability of the maps of an explainer.

    Attributes:
        median: Median reliability of the maps (`maps.reliability`).
        n: Number of maps with known reliability.
        draws: Number of draws that each map averages, or the median of these numbers if they differ.
    """

    median: Annotated[float, Field(ge=0, le=1)]
    n: Annotated[Count, Field(ge=1)]
    draws: Annotated[Count, Field(ge=1)]

    @property
    def is_low(self) -> bool:
        """Return whether the reliability is so low that different draws would clearly change the map."""
        return self.median < LOW

    @property
    def wanted(self) -> int | None:
        """Return the number of draws with which the reliability would reach `GOAL`.

        The result is None if the median is at least `GOAL`, or below `KNOWN`.

        According to the Spearman-Brown formula, k times as many draws have the reliability k R / (1 + (k - 1) R).
        """
        if not KNOWN <= self.median < GOAL:
            return None
        draws = self.draws * GOAL * (1 - self.median) / (self.median * (1 - GOAL))
        return ceil(round(draws, 6)) if draws < MOST else None

    def __str__(self) -> str:
        text = f"{self.median:.2f}"
        if not self.is_low:
            return text
        wanted = self.wanted
        more = f"about {rounded(wanted):,} draws instead of {self.draws:,} would reach {GOAL}" if wanted else (
            f"{self.draws:,} draws are too few to tell how many would reach {GOAL}"
        )  # fmt: skip
        return f"{text} (below {LOW}; {more})"


def rounded(count: int) -> int:
    """Return a number of draws rounded up to two significant digits, because the median is not known more precisely."""
    unit = 10 ** max(0, len(str(count)) - 2)
    return -(-count // unit) * unit


def reliabilities(folder: Path) -> dict[str, Reliability]:
    """Return {explainer id: reliability of the maps} of a run; {} if no explainer averages random draws."""
    if not (path := folder / FILE).is_file():
        return {}
    table = pq.read_table(path, columns=["explainer_id", "reliability", "draws"])
    rows: dict[str, list[tuple[float, int]]] = {}
    columns = (table[name].to_pylist() for name in table.column_names)
    for explainer_id, value, draws in zip(*columns, strict=True):
        if value is not None:
            rows.setdefault(explainer_id, []).append((value, draws))
    return {
        key: Reliability(
            median=float(np.median([value for value, _ in pairs])),
            n=len(pairs),
            draws=round(np.median([count for _, count in pairs])),
        )
        for key, pairs in rows.items()
    }


def read_reliability(summary: Mapping[str, Any]) -> dict[str, Reliability]:
    """Return {explainer id: reliability of the maps} from a summary; {} for summaries of earlier versions."""
    return {key: Reliability.model_validate(about) for key, about in summary.get("reliability", {}).items()}


def reliability_line(summary: Mapping[str, Any], cells: Sequence[CellKey]) -> str:
    """Return a line about the reliability of maps that average random draws; "" if there are none."""
    known, names = read_reliability(summary), explainer_names(cells)
    listed = ", ".join(f"{name} {known[key]}" for key, name in names.items() if key in known)
    return f"Reliability of maps that average random draws, median: {listed}" if listed else ""
