"""The columns of a board's table: order, types, and how each column is derived from a row."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from saliency_bench.board.row import Row
from saliency_bench.read.cell import rank_text

if TYPE_CHECKING:
    import datasets

TEXT, NUMBER, COUNT, FLAG = "string", "float64", "int64", "bool"
TEXTS = "texts"  # a list of strings
Column = tuple[str, Callable[[Row], Any]]

# Types are declared, because the type of a column without values cannot be inferred.
COLUMNS: Final[dict[str, Column]] = {
    "explainer": (TEXT, lambda row: row.cell.explainer_text),
    "metric": (TEXT, lambda row: row.cell.metric_text),
    "dataset": (TEXT, lambda row: row.dataset),
    "model": (TEXT, lambda row: row.model),
    "value": (NUMBER, lambda row: row.cell.value),
    "low": (NUMBER, lambda row: row.cell.low),
    "high": (NUMBER, lambda row: row.cell.high),
    "n": (COUNT, lambda row: row.cell.n),
    "rank": (TEXT, lambda row: rank_text(row.rank) or row.unranked),
    "status": (TEXT, lambda row: row.status),
    "recomputed": (COUNT, lambda row: row.recomputed.samples if row.recomputed else 0),
    "attempts": (COUNT, lambda row: row.attempts),
    "best": (FLAG, lambda row: row.best),
    "why": (TEXT, lambda row: row.why),
    "rank_if_true": (TEXT, lambda row: rank_text(row.rank_if_true)),
    "not_comparable": (TEXT, lambda row: row.not_comparable),
    "own_method": (FLAG, lambda row: row.own_method),
    "submitters": (TEXTS, lambda row: list(row.submitters)),
    "conflict": (FLAG, lambda row: row.conflict),
    "same_as": (TEXTS, lambda row: list(row.same_as)),
    "baseline": (FLAG, lambda row: row.cell.baseline),
    "higher_is_better": (FLAG, lambda row: row.cell.higher_is_better),
    "clusters": (COUNT, lambda row: row.cell.clusters),
    "samples": (COUNT, lambda row: row.result.dataset.samples),
    "left_out": (COUNT, lambda row: sum(row.cell.left_out.values())),
    "accuracy": (NUMBER, lambda row: row.result.model.accuracy.value),
    "accuracy_checked": (FLAG, lambda row: row.accuracy_checked),
    "cell_id": (TEXT, lambda row: row.cell.cell_id),
    "explainer_version": (TEXT, lambda row: str(row.cell.explainer_version)),
    "metric_version": (TEXT, lambda row: str(row.cell.metric_version)),
    "split": (TEXT, lambda row: row.result.dataset.split),
    "fingerprint": (TEXT, lambda row: row.result.dataset.fingerprint),
    "dataset_repo": (TEXT, lambda row: row.result.dataset.repo),
    "dataset_revision": (TEXT, lambda row: row.result.dataset.revision),
    "digest": (TEXT, lambda row: row.result.model.digest),
    "model_repo": (TEXT, lambda row: row.result.model.repo),
    "model_revision": (TEXT, lambda row: row.result.model.revision),
    "target": (TEXT, lambda row: row.result.setting.target),
    "precision": (TEXT, lambda row: row.result.setting.precision),
    "seed": (COUNT, lambda row: row.result.setting.seed),
    "source": (TEXT, lambda row: row.folder),
}


def features() -> "datasets.Features":
    """Return the type of each column."""
    import datasets  # slow to import and not needed to display a board

    kinds = {kind: datasets.Value(kind) for kind in (TEXT, NUMBER, COUNT, FLAG)}
    kinds[TEXTS] = datasets.List(kinds[TEXT])
    return datasets.Features({name: kinds[kind] for name, (kind, _) in COLUMNS.items()})


def columns_of(row: Row) -> dict[str, Any]:
    """Convert a row of a board to a row of its table."""
    return {name: value(row) for name, (_, value) in COLUMNS.items()}
