"""The words of a report: numbers, the verdict, the glossary. Nothing here that the run's files do not hold."""

import re
from collections.abc import Iterable
from pathlib import Path

from saliency_bench import registry
from saliency_bench.errors import UserError
from saliency_bench.metric import Metric, load_metric
from saliency_bench.reasons import PRECOMPUTED
from saliency_bench.results.cell import CellResult, Interval
from saliency_bench.results.run_folder import Column, Row, RunData

NONE = "–"
UNKNOWN = "Not known to the version of saliency-bench that made this page."
NO_CHANCE = "This run has no random baseline, so it does not show what an uninformative map would score."
TARGETS = {
    "label": "the labelled class",
    "predicted": "the predicted class",
    "contrast:second": "the predicted class and not the runner-up",
}


def number(value: float | None) -> str:
    if value is None or value != value:
        return NONE
    return f"{value:.1e}" if 0 < abs(value) < 0.0005 else f"{value:.3f}"


def interval(result: Interval) -> str:
    return f"[{number(result.low)}, {number(result.high)}]" if result.ends else ""


def signed(value: float | None) -> str:
    """A difference, with its sign."""
    if value is None or value != value:
        return NONE
    return "0" if value == 0 else ("+" if value > 0 else "−") + number(abs(value))


def signed_interval(low: float | None, high: float | None) -> str:
    return "" if low is None or low != low else f"[{signed(low)}, {signed(high)}]"


def percent(value: float | None) -> str:
    return NONE if value is None or value != value else f"{100 * value:.1f}\N{NO-BREAK SPACE}%"


def percent_interval(result: Interval) -> str:
    if result.ends is None:
        return ""
    low, high = result.ends
    return f"[{100 * low:.1f}, {100 * high:.1f}]\N{NO-BREAK SPACE}%"


def count(value: int | None) -> str:
    return NONE if value is None else f"{value:,}"


def seconds(value: float | None) -> str:
    if value is None:
        return NONE
    return f"{value:.1f} s" if value < 120 else f"{value / 60:.1f} min" if value < 7200 else f"{value / 3600:.1f} h"


def reasons(counted: dict[str, int]) -> str:
    return ", ".join(f"{reason} {count(times)}" for reason, times in counted.items())


def listed(names: Iterable[str]) -> str:
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last


def options(chosen: dict) -> str:
    return ", ".join(f"{key} = {value}" for key, value in chosen.items())


def short(identity: str) -> str:
    """A local path is cut to its last part; names and Hub ids stay."""
    is_path = identity.count("/") > 1 or identity.startswith((".", "/", "~"))
    return Path(identity).name or identity if is_path else identity


def target(rule: str) -> str:
    return TARGETS.get(rule, f"what {rule} names for each sample")


def verdict(run: RunData) -> list[str]:
    """Sentences: who beats `random`, who leads, which simple baseline is not beaten."""
    chance = next((row for row in run.rows if row.baseline and row.name == "random"), None)
    methods = [row for row in run.rows if not row.baseline]
    sentences = [NO_CHANCE] if chance is None else _against_chance(run, methods, chance)
    sentences += [*_against_baselines(run, methods), *_leaders(run)]
    if any("beat" in sentence for sentence in sentences):
        sentences.append("To beat means: a better mean, and 95 % intervals that do not overlap.")
    return sentences


def _against_chance(run: RunData, methods: list[Row], chance: Row) -> list[str]:
    """A sentence for each group of explainers that compare alike with random noise."""
    groups: dict[tuple, list[str]] = {}
    for row in methods:
        columns = [column for column in run.columns if run.cell(row, column) and run.cell(chance, column)]
        signs = tuple((column.name, stands_against(run, row, chance, column)) for column in columns)
        groups.setdefault(signs, []).append(row.name)
    return [_chance_sentence(names, dict(signs)) for signs, names in groups.items() if signs]


def _chance_sentence(names: list[str], signs: dict[str, int]) -> str:
    """signs: {metric: as `stands_against` gives it}."""
    several = len(names) > 1
    clauses: list[str] = []
    for sign, verb in (
        (1, "beat" if several else "beats"),
        (-1, "fall behind" if several else "falls behind"),
        (0, "do not differ clearly from" if several else "does not differ clearly from"),
    ):
        if columns := [column for column, other in signs.items() if other == sign]:
            clauses.append(f"{verb} {'it' if clauses else 'random noise'} on {_all_or(columns, len(signs))}")
    return f"{listed(names)} {', but '.join(clauses)}."


def _all_or(columns: list[str], known: int) -> str:
    return f"all {known} metrics" if len(columns) == known > 1 else listed(columns)


def stands_against(run: RunData, row: Row, other: Row, column: Column) -> int:
    """1 if a row is better than the other and their intervals do not overlap, -1 if worse, else 0."""
    cells = run.cell(row, column), run.cell(other, column)
    own, its = (cell.ends if cell else None for cell in cells)
    if own is None or its is None:
        return 0
    above, below = own[0] > its[1], own[1] < its[0]
    return (int(above) - int(below)) * (1 if column.higher_is_better else -1)


def _against_baselines(run: RunData, methods: list[Row]) -> list[str]:
    """Where a baseline that knows nothing of the network does as well as every explainer, or better than one."""
    sentences = []
    for baseline in [row for row in run.rows if row.baseline and row.name != "random"] if methods else []:
        name = f"{baseline.name}, which ignores the network,"
        signs = {column.name: [stands_against(run, row, baseline, column) for row in methods] for column in run.columns
                 if run.cell(baseline, column)}  # fmt: skip
        unbeaten = [column for column, of_rows in signs.items() if max(of_rows) < 1]
        if unbeaten:
            sentences.append(f"No explainer beats {name} on {_all_or(unbeaten, len(signs))}.")
        for index, row in enumerate(methods):
            behind = [column for column, of_rows in signs.items() if column not in unbeaten and of_rows[index] < 0]
            if behind:
                sentences.append(f"{row.name} falls behind {name} on {listed(behind)}.")
    return sentences


def _leaders(run: RunData) -> list[str]:
    leaders: dict[str, list[str]] = {}
    for column in run.columns:
        if names := [row.name for row in best(run, column)]:
            leaders.setdefault(listed(names), []).append(column.name)
    clauses = [f"{names} on {_all_or(columns, len(run.columns))}" for names, columns in leaders.items()]
    return [f"Best mean score: {'; '.join(clauses)}."] if len(run.rows) > 1 and clauses else []


def best(run: RunData, column: Column) -> list[Row]:
    """The rows with the best value, several where they are equal."""
    cells = run.cells_of_column(column)
    value = leading([cell for _, cell in cells], column.higher_is_better)
    return [row for row, cell in cells if value is not None and cell.value == value]


def leading(cells: Iterable[CellResult | None], higher_is_better: bool) -> float | None:
    """The best value there is."""
    values = [cell.value for cell in cells if cell is not None and cell.value is not None]
    return (max if higher_is_better else min)(values) if values else None


def faults(run: RunData) -> str:
    """How many records were lost, for a notice; nothing where all went well."""
    total = sum(run.summary["faults"].values())
    if total == 0:
        return ""
    return f"{count(total)} {'record has' if total == 1 else 'records have'} no score because something went wrong"


def part_of(share: float, whole: float | None) -> str:
    return seconds(share) + (f", {percent(share / whole)}" if whole else "")


def class_groups(summary: dict) -> str:
    """The groups of classes of a run; equal names may hold different groups, so their digest follows."""
    groups = summary.get("groups")
    return f"groups of {groups['name']}, digest {groups['identity'][:8]}" if groups else "no groups of classes"


def left_out(run: RunData) -> list[str]:
    """A line per metric: on how many samples, and why not on the others; explainers named only where they differ.

    Scores that stand but are marked, other than those of flat maps, are counted next to n.
    """
    lines = []
    for column in run.columns:
        groups: dict[tuple, list[str]] = {}
        for row, cell in run.cells_of_column(column):
            key = cell.n, tuple(cell.left_out.items()), tuple(cell.marked.items())
            groups.setdefault(key, []).append(row.name)
        for (scored, without, marked), names in groups.items():
            explainers = f" of {listed(names)}" if len(groups) > 1 else ""
            missing = f"; left out: {reasons(dict(without))}" if without else ", none left out"
            among = f" ({reasons(dict(marked))})" if marked else ""
            lines.append(f"{column.name}{explainers}: n = {count(scored)}{among}{missing}")
    return lines


def flat(run: RunData) -> list[str]:
    """Which explainers gave constant maps, and how many."""
    most = {row.name: max(cell.flat for cell in run.cells_of_row(row)) for row in run.rows}
    return [f"{name} {count(maps)}" for name, maps in most.items() if maps]


def metric_notes(run: RunData) -> list[dict]:
    return [_metric_note(column, run.cells_of_column(column)[0][1]) for column in run.columns]


def _metric_note(column: Column, cell: CellResult) -> dict:
    note = {"name": column.name, "options": options(cell.metric_options), "direction": column.direction}
    metric = _metric(cell.metric)
    if metric is None:
        return note | {"about": UNKNOWN, "range": "", "paper": ""}
    path = registry.files("metrics")[cell.metric].with_name("score.py")
    low, high = (f"{bound:g}" for bound in metric.range)
    return note | {"about": registry.summary(path), "range": f"from {low} to {high}", "paper": metric.paper}


def _metric(name: str) -> Metric | None:
    try:
        return load_metric(name)
    except UserError:
        return None


def explainer_notes(run: RunData) -> list[dict]:
    known = registry.files("explainers")
    first_cells = {row.name: run.cells_of_row(row)[0] for row in run.rows}
    return [
        {"name": name, "options": options(cell.explainer_options), "about": _explainer_about(cell, known)}
        for name, cell in first_cells.items()
    ]


def _explainer_about(cell: CellResult, known: dict[str, Path]) -> str:
    if str(cell.explainer_version).startswith(PRECOMPUTED):
        return "Precomputed maps."
    if isinstance(cell.explainer_version, str):
        return "A Python function that was passed to this run."
    if cell.explainer not in known:
        return UNKNOWN
    # Numbers of the project's own reading list mean nothing to a reader of the page.
    return re.sub(r"\s*\(P\d[^()]*\)|; P\d[^()]*(?=\))", "", registry.summary(known[cell.explainer]))
