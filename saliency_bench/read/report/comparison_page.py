"""Build the content of a page that compares runs: common settings, differing settings, and differences of scores."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from saliency_bench.read.analysis.common_names import names_of
from saliency_bench.read.analysis.comparison import Comparison, RunDifference, merged_words
from saliency_bench.read.analysis.differences import RunPair, same
from saliency_bench.read.cell import UNCOMPARED, CellResult
from saliency_bench.read.finished_run import Run
from saliency_bench.read.report import words
from saliency_bench.read.report.plots import difference_histogram, difference_plot
from saliency_bench.read.statistics.ranking import NO_DIFFERENCE, NOT_TESTED, TOO_FEW_TO_TELL
from saliency_bench.read.summary import explained

# {setting: another setting that implies it}, and prefixes for values that are unclear without a prefix.
FOLLOWS = {"Classifier digest": "Classifier", "Geometry": "Classifier", "Dataset fingerprint": "Dataset"}
PREFIXES = {
    "Classifier digest": "digest ",
    "Dataset fingerprint": "dataset ",
    "Groups of classes": "groups of classes ",
    "Seed": "seed ",
    "Batch size": "batches of ",
}


def comparison_view(runs: list[Run], comparison: Comparison) -> dict[str, Any]:
    """Return the variables of the template for several runs."""
    equal, differing = _split_settings(runs)
    first, *others = comparison.merged
    names = run_names(runs)
    title = merged_name(first, comparison, names)
    if len(others) == 1:
        title = f"{merged_name(others[0], comparison, names)} against {title}"
    return {
        "title": title if len(others) < 2 else f"{len(runs)} runs side by side",
        "count": len(runs),
        "runs": [_run_column(number, run, comparison, differing, names) for number, run in enumerate(runs, start=1)],
        "equal": equal,
        "differing": differing,
        "merged": [_merged_sentences(run, comparison, names) for run in comparison.merged if run.runs],
        "conflicts": comparison.conflicts,
        "names": names,
        "labels": _labels(comparison, names),
        "tables": _tables(comparison, names) if len(comparison.merged) > 1 else [],
        "same_samples": _same_samples(comparison.merged),
        "best": any(run.table.best for run in comparison.merged),
        "first": merged_name(first, comparison, names),
        "differences": [_difference_view(difference, comparison, names) for difference in comparison.differences],
    }


def run_names(runs: Sequence[Run]) -> list[str]:
    """Return the names of runs: the names of their folders, with as many parent folders as needed to be unique."""
    places = [run.folder.resolve().parts for run in runs]
    for depth in range(1, max(map(len, places)) + 1):
        names = ["/".join(place[-depth:]) for place in places]
        if len(set(names)) == len(names):
            break
    return names


def merged_name(run: Run, comparison: Comparison, names: Sequence[str]) -> str:
    """Return the name of a single or merged run: "first", or "first + third"."""
    return " + ".join(names[number - 1] for number in comparison.numbers(run))


def _merged_sentences(merged: Run, comparison: Comparison, names: Sequence[str]) -> str:
    samples = [words.count(run.summary["dataset"]["used"]) for run in merged.runs]
    differing = f" They cover {words.listed(samples)} samples; two explainers are compared on their common samples."
    text = f"{merged_name(merged, comparison, names)} {merged_words(merged)}."
    return text + (differing if len(set(samples)) > 1 else "")


def _run_column(
    number: int, run: Run, comparison: Comparison, differing: list[str], names: Sequence[str]
) -> dict[str, Any]:
    home = next(numbers for numbers in map(comparison.numbers, comparison.merged) if number in numbers)
    settings = settings_of(run.summary)
    return {
        "name": names[number - 1],
        "anchor": f"run-{home[0]}",
        "settings": [settings[name] for name in differing],
        "cells": len(run.cells),
        "faults": sum(run.summary["faults"].values()),
        "accuracy": run.accuracy,
        "dataset": run.summary["dataset"],
        "masks": run.summary["masks"],
    }


def settings_of(summary: dict) -> dict[str, str]:
    """Return {setting: readable value} for settings that may differ between two runs."""
    dataset, model = summary["dataset"], summary["model"]
    return {
        "Classifier": words.short(model["id"]) + words.origin(model),
        "Classifier digest": model["digest"][:8],
        "Geometry": model["geometry"],
        "Dataset": f"{words.short(dataset['id'])}, split {dataset['split']}{words.origin(dataset)}",
        "Dataset fingerprint": dataset["fingerprint"][:8],
        "Maps explain": explained(summary["target"]),
        "Groups of classes": words.class_groups(summary),
        "Precision": summary["precision"],
        "Seed": str(summary["seed"]),
        "Batch size": str(summary["batch_size"]),
    }


def _split_settings(runs: Sequence[Run]) -> tuple[dict[str, str], list[str]]:
    """Return ({setting: value} for settings that are equal in all runs, names of the other settings)."""
    settings = [settings_of(run.summary) for run in runs]
    differing = [name for name in settings[0] if len({settings_of_run[name] for settings_of_run in settings}) > 1]
    return {name: value for name, value in settings[0].items() if name not in differing}, differing


def _labels(comparison: Comparison, names: Sequence[str]) -> list[tuple[str, str]]:
    """Return (name, distinguishing settings) for each run after merging."""
    _, differing = _split_settings(comparison.merged)
    return [(merged_name(run, comparison, names), _label(run, differing)) for run in comparison.merged]


def _label(run: Run, differing: list[str]) -> str:
    settings = settings_of(run.summary)
    shown = [name for name in differing if FOLLOWS.get(name) not in differing]
    return ", ".join(PREFIXES.get(name, "") + settings[name] for name in shown)


def _same_samples(runs: Sequence[Run]) -> bool:
    datasets = [run.summary["dataset"] for run in runs]
    return len({(dataset["fingerprint"], dataset["split"], dataset["used"]) for dataset in datasets}) == 1


@dataclass(frozen=True)
class TableRow:
    """Row of a comparison table: an explainer's cell in each run, or None if the run has no such cell."""

    name: str
    baseline: bool
    cells: list[CellResult | None]


def _tables(comparison: Comparison, names: Sequence[str]) -> list[dict]:
    """Return a table per metric with a row per explainer and a column per run, baselines last."""
    runs = comparison.merged
    of_explainers, of_metrics = names_of(runs)
    by_run = [{(of_metrics.key(cell), of_explainers.key(cell)): cell for cell in run.cells} for run in runs]
    in_order = [cell for run in runs for row in run.table.rows for cell in run.table.cells_of_row(row)]
    metrics = {of_metrics.key(cell): cell.higher_is_better for cell in reversed(in_order)}
    baselines = {of_explainers.key(cell): cell.baseline for cell in reversed(in_order)}
    explainers = sorted(dict.fromkeys(map(of_explainers.key, in_order)), key=lambda explainer: baselines[explainer])
    tables = []
    for metric in dict.fromkeys(map(of_metrics.key, in_order)):
        rows = [
            TableRow(of_explainers.texts[explainer], baselines[explainer], cells)
            for explainer in explainers
            if any(cells := [cells_of_run.get((metric, explainer)) for cells_of_run in by_run])
        ]
        tables.append(
            {
                "name": of_metrics.texts[metric],
                "higher_is_better": metrics[metric],
                "rows": _tagged(rows, comparison, names),
            }
        )
    return tables


def _tagged(rows: list[TableRow], comparison: Comparison, names: Sequence[str]) -> list[dict]:
    """Return the rows of one table. Each cell has tags and, if it repeats a score, the name of the run with it."""
    conflicting = {conflict.cell_id for conflict in comparison.conflicts}

    def entry(row: TableRow, index: int, cell: CellResult) -> dict:
        is_best = cell.cell_id in comparison.merged[index].table.best
        tags = {
            "best explainer": is_best,
            UNCOMPARED: is_best and cell.beats_baselines is None,
            "conflict": cell.cell_id in conflicting,
        }
        repeated = (
            merged_name(run, comparison, names)
            for run, other in zip(comparison.merged, row.cells[:index], strict=False)
            if other is not None and cell.cell_id not in conflicting and _repeats(cell, other)
        )
        return {"cell": cell, "tags": [tag for tag, holds in tags.items() if holds], "same_as": next(repeated, None)}

    return [
        {
            "name": row.name,
            "baseline": row.baseline,
            "cells": [cell and entry(row, index, cell) for index, cell in enumerate(row.cells)],
        }
        for row in rows
    ]


def _repeats(cell: CellResult, other: CellResult) -> bool:
    """Return whether two runs have the same cell with the same value."""
    if cell.value is None or other.value is None:
        return False
    return cell.cell_id == other.cell_id and cell.n == other.n and bool(same(cell.value, other.value))


def _difference_view(difference: RunDifference, comparison: Comparison, names: Sequence[str]) -> dict:
    """Return the content about the differences between a single or merged run and the first run.

    The content consists of a verdict, the changed settings, and a card, a table and plots for each metric.
    """
    before, after = settings_of(comparison.merged[0].summary), settings_of(difference.run.summary)
    first, second = (merged_name(run, comparison, names) for run in (comparison.merged[0], difference.run))
    by_metric: dict[str, list[RunPair]] = {}
    for pair in difference.pairs:
        if not pair.is_same:
            by_metric.setdefault(pair.metric, []).append(pair)
    return {
        "name": second,
        "anchor": f"difference-{comparison.numbers(difference.run)[0]}",
        "changed": [(name, value, after[name]) for name, value in before.items() if value != after[name]],
        "reason": difference.reason,
        "verdict": difference_verdict(first, second, difference.pairs),
        "cards": [_change(name, rows) for name, rows in by_metric.items()],
        "metrics": [
            {
                "name": name,
                "higher_is_better": rows[0].higher_is_better,
                "pairs": rows,
                "means": Markup(difference_plot(rows)),
                "bars": Markup(difference_histogram(rows)) if rows[0].is_tested else "",
                "largest": [(pair, pair.largest) for pair in rows if pair.largest],
            }
            for name, rows in by_metric.items()
        ],
    }


def _change(metric: str, pairs: list[RunPair]) -> dict:
    """Return the card of a metric, with the explainers for which the second run is better or worse."""
    return {
        "name": metric,
        "higher_is_better": pairs[0].higher_is_better,
        "better": [pair for pair in pairs if pair.direction == 1],
        "worse": [pair for pair in pairs if pair.direction == -1],
        "others": [(word, words.count(times)) for word, times in Counter(
            pair.word for pair in pairs if not pair.direction).items()],
    }  # fmt: skip


def difference_verdict(first: str, second: str, pairs: list[RunPair]) -> str:
    """Return sentences with the numbers of cells that are significantly better, significantly worse, or equal."""
    if not pairs:
        return "The runs share no pair of explainer and metric."
    differing = [pair for pair in pairs if not pair.is_same]
    tested = [pair for pair in differing if pair.is_tested]
    equal, aggregates = len(pairs) - len(differing), len(differing) - len(tested)
    sentences = [_tested_verdict(first, second, tested)] if tested else []
    if aggregates:
        which = "differing value is an aggregate" if aggregates == 1 else "differing values are aggregates"
        sentences.append(f"{words.count(aggregates)} {which}, {NOT_TESTED}.")
    if equal:
        sentences.append(f"{words.count(equal)} {'cell is' if equal == 1 else 'cells are'} equal in both runs.")
    return " ".join(sentences)


def _tested_verdict(first: str, second: str, pairs: list[RunPair]) -> str:
    better, worse = (sum(pair.direction == sign for pair in pairs) for sign in (1, -1))
    undecided = sum(pair.p is None for pair in pairs)
    alike = len(pairs) - better - worse - undecided
    all_pairs = f"{words.count(len(pairs))} {'pair' if len(pairs) == 1 else 'pairs'} of explainer and metric"
    clauses = []
    if better:
        clauses.append(f"{second} is significantly better than {first} on {words.count(better)} of {all_pairs}")
    if worse:
        whom = "worse" if better else f"{second} is significantly worse than {first}"
        clauses.append(f"{whom} on {words.count(worse)}{'' if better else f' of {all_pairs}'}")
    if alike:
        clauses.append(f"{NO_DIFFERENCE} on {words.count(alike)}{'' if clauses else f' of {all_pairs}'}")
    if undecided:
        clauses.append(f"{TOO_FEW_TO_TELL} on {words.count(undecided)}{'' if clauses else f' of {all_pairs}'}")
    return f"{'; '.join(clauses)}." if better or worse else f"{second} against {first}: {'; '.join(clauses)}."
