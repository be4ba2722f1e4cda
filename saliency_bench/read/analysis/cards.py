"""Summarise the verdict on a run as cards, one per metric, and list the explainers that are worse than a baseline."""

from collections.abc import Callable
from dataclasses import dataclass

from saliency_bench.read.analysis.verdict import Verdict, listed
from saliency_bench.read.cell import BEST_FROM, UNCOMPARED, CellResult

MOST_LINES = 4  # lines about explainers that are worse than a baseline; if there are more, they are merged


@dataclass(frozen=True)
class Card:
    """Verdict on the explainers of a run on one metric.

    Attributes:
        metric: Name of the metric in tables.
        higher_is_better: Direction of the metric.
        cells: Cells of the explainers that the card names, best mean first.
        verdict: Short verdict on these explainers.
        is_good: Whether this metric supports recommending these explainers.
    """

    metric: str
    higher_is_better: bool
    cells: tuple[CellResult, ...]
    verdict: str
    is_good: bool = False


@dataclass(frozen=True)
class Worse:
    """Explainers that are significantly worse than the same baseline on the same metrics."""

    names: list[str]
    baseline: str
    metrics: list[str]


def cards(verdict: Verdict) -> list[Card]:
    """Return a card per metric, in the order of the table."""
    return [_card(verdict, metric, name) for metric, name in verdict.metrics.items()]


def _card(verdict: Verdict, metric: tuple[str, int | str], name: str) -> Card:
    """Return the card of a metric, with the explainers that are marked as best, or the reason why none is."""
    cells = [cell for key in verdict.order if (cell := verdict.cells.get((key, metric))) is not None]
    higher = cells[0].higher_is_better
    scored = sorted((cell for cell in cells if cell.value is not None), key=lambda cell: -cell.oriented)
    unbeaten = [cell for cell in scored if cell.unbeaten]
    best = [cell for cell in unbeaten if cell.cell_id in verdict.marked]
    baselines = [cell for cell in unbeaten if cell.baseline]
    if not scored:
        return Card(name, higher, (), "no scores")
    if not unbeaten:
        methods = [cell for cell in scored if not cell.baseline] or scored
        return Card(name, higher, (methods[0],), f"{'highest' if higher else 'lowest'} value, not ranked")
    if best:
        compared = "" if best[0].beats_baselines else f", {UNCOMPARED}"
        return Card(name, higher, tuple(best), ("tied for best" if len(best) > 1 else "best") + compared, True)
    if all(cell.unbeaten for cell in scored if cell.rank):
        return Card(name, higher, (), "no difference found")
    if baselines:
        it = "it" if len(baselines) == 1 else "these"
        return Card(name, higher, tuple(baselines), f"baseline; no method is shown to beat {it}")
    if all(cell.scored < BEST_FROM for cell in unbeaten):
        return Card(
            name, higher, tuple(unbeaten), f"not best: fewer than {BEST_FROM * 100:.0f} % of the samples are scored"
        )
    return Card(name, higher, tuple(unbeaten), "not best: a baseline may be just as good")


def below(verdict: Verdict) -> dict[str, list[str]]:
    """Return {cell id: baselines that are significantly better}."""
    names: dict[str, list[str]] = {}
    for comparisons in verdict.against_baselines():
        for comparison in comparisons:
            if comparison.tested and comparison.sign == -1:
                names.setdefault(comparison.contrast.cells[0], []).append(comparison.other)
    return names


def worse(verdict: Verdict) -> list[Worse]:
    """Return the explainers that are significantly worse than a baseline, grouped by baseline and metrics."""
    entries = []
    for comparisons in verdict.against_baselines():
        metrics: dict[str, list[str]] = {}
        for comparison in comparisons:
            if comparison.tested and comparison.sign == -1:
                metrics.setdefault(comparison.name, []).append(comparison.metric)
        groups: dict[tuple[str, ...], list[str]] = {}
        for name, of_name in metrics.items():
            groups.setdefault(tuple(of_name), []).append(name)
        entries += [Worse(names, comparisons[0].other, list(of_names)) for of_names, names in groups.items()]
    return entries


def worse_lines(verdict: Verdict, title: Callable[[str], str]) -> list[str]:
    """Return `worse` as sentences. If there are more than `MOST_LINES`, they are merged into one per baseline.

    `title` returns the name of a metric on the page.
    """
    entries = worse(verdict)
    if len(entries) <= MOST_LINES:
        return [f"{_are(entry.names)} worse than {entry.baseline} on {listed(map(title, entry.metrics))}."
                for entry in entries]  # fmt: skip
    names: dict[str, list[str]] = {}
    for entry in entries:
        names.setdefault(entry.baseline, []).extend(entry.names)
    return [
        f"{_are(of_baseline)} worse than {baseline} on at least one metric." for baseline, of_baseline in names.items()
    ]


def _are(names: list[str]) -> str:
    return f"{listed(names)} {'is' if len(names) == 1 else 'are'}"
