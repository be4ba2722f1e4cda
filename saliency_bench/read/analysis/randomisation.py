"""Judge whether the maps of an explainer depend on the network's weights, by randomising the weights.

Each part of `saliency_randomisation` belongs to a layer. The part is the similarity between the maps before and after
all layers from the logits down to this layer are randomised. Maps that stay similar do not depend on the weights of
those layers (Adebayo et al., 2018).
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from saliency_bench.errors import UserError
from saliency_bench.read.analysis.tables import Findings, Table, Value, dicts
from saliency_bench.read.cell import CellResult, PartResult

if TYPE_CHECKING:
    from saliency_bench.read.finished_run import Run

METRIC = "saliency_randomisation"
VERDICTS = ("dataset", "model", "metric", "explainer", "verdict", "similarity", "low", "high", "n", "changes at")
LAYERS = ("dataset", "model", "metric", "explainer", "down to", "similarity", "low", "high", "n", "verdict")
BOUND = 0.5
STAYS, CHANGES, OPEN, FEW = "does not depend", "depends", "undecided", "too few samples"


def randomisation(runs: Sequence["Run"], bound: float = BOUND) -> Findings:
    """Judge for each explainer and layer whether the map depends on the weights from the logits down to that layer.

    The verdict uses the 95 % interval of the similarity of the maps before and after randomisation. The verdict is
    "does not depend" if the whole interval is above `bound`, "depends" if the whole interval is below `bound`, and
    "undecided" otherwise. The verdict on an explainer is its verdict after all layers have been randomised. "changes
    at" is the first layer, from the logits down, at which the map depends on the weights.

    Args:
        runs: Runs with saliency_randomisation, with a `form` that measures a similarity.
        bound: Threshold for the similarity (structural similarity or rank correlation), between -1 and 1. No paper
            recommends a value.

    Raises:
        UserError: The bound is out of range, or no run has similarity scores of saliency_randomisation.
    """
    if not -1 < bound < 1:
        raise UserError(f"bound must be a similarity between -1 and 1; got {bound:g}")
    rows: list[tuple[Value, ...]] = []
    verdicts: list[tuple[Value, ...]] = []
    for run, name, metric, cell in _cells(runs):
        subject = *run.subject, metric, name
        judged = {layer: verdict(part, bound) for layer, part in cell.parts.items()}
        rows += [(*subject, layer, *_numbers(part), judged[layer]) for layer, part in cell.parts.items()]
        last, part = list(cell.parts.items())[-1]
        first = next((layer for layer, outcome in judged.items() if outcome == CHANGES), None)
        verdicts.append((*subject, judged[last], *_numbers(part), first))
    if not rows:
        raise UserError(
            f"no run has scores of {METRIC} with form=ssim or form=spearman; "
            f"add the metric with --metrics {METRIC}:layers=5"
        )
    notes = [
        f"{STAYS}: the 95 % interval of the similarity lies above {bound:g}; {CHANGES}: it lies below this value. "
        "Layers get new weights one after the other, from the logits down; the first table shows "
        "the result for all layers.",
        "A map that depends on the weights is not necessarily correct; a map that does not depend on them "
        "cannot explain what the network learned.",
    ]
    data = {"bound": bound, "explainers": dicts(VERDICTS, verdicts), "layers": dicts(LAYERS, rows)}
    return Findings("randomisation", [Table(VERDICTS, verdicts), Table(LAYERS, rows, "layers")], data, notes)


def verdict(similarity: PartResult, bound: float) -> str:
    """Return the verdict from the interval of a similarity."""
    if similarity.ends is None:
        return FEW
    low, high = similarity.ends
    return STAYS if low > bound else CHANGES if high < bound else OPEN


def _cells(runs: Sequence["Run"]) -> Iterator[tuple["Run", str, str, CellResult]]:
    """Yield (run, explainer, metric, cell) for each cell whose scores are similarities."""
    for run in runs:
        for row in run.table.rows:
            for column in run.table.columns:
                cell = run.table.cell(row, column)
                if cell and cell.metric == METRIC and cell.parts and cell.metric_options.get("form") != "complexity":
                    yield run, row.name, column.name, cell


def _numbers(part: PartResult) -> tuple[Value, ...]:
    return part.value, part.low, part.high, part.n
