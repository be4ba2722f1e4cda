"""What a report says in words: numbers, the verdict, the glossary. Nothing here that the run does not hold."""

import re
from collections.abc import Iterable
from pathlib import Path

from saliency_bench import registry
from saliency_bench.analysis.comparison import Pair
from saliency_bench.errors import UserError
from saliency_bench.metric import Metric, load_metric
from saliency_bench.reasons import PRECOMPUTED
from saliency_bench.results.run_folder import Column, Row, RunData

NONE = "–"
UNKNOWN = "Not known to the version of saliency-bench that made this page."
NO_CHANCE = "This run has no random baseline, so it cannot say what a map that knows nothing would score."
TARGETS = {
    "label": "the labelled class",
    "predicted": "the predicted class",
    "contrast:second": "the predicted class and not the runner-up",
}


def number(value: float | None) -> str:
    if value is None or value != value:
        return NONE
    return f"{value:.1e}" if 0 < abs(value) < 0.0005 else f"{value:.3f}"


def interval(cell: dict) -> str:
    return f"[{number(cell['low'])}, {number(cell['high'])}]" if _has_interval(cell) else ""


def signed(value: float | None) -> str:
    """A difference, with its sign."""
    if value is None or value != value:
        return NONE
    return "0" if value == 0 else ("+" if value > 0 else "−") + number(abs(value))


def signed_interval(low: float | None, high: float | None) -> str:
    return "" if low is None or low != low else f"[{signed(low)}, {signed(high)}]"


def percent(value: float | None) -> str:
    return NONE if value is None or value != value else f"{100 * value:.1f}\N{NO-BREAK SPACE}%"


def percent_interval(cell: dict) -> str:
    return f"[{100 * cell['low']:.1f}, {100 * cell['high']:.1f}]\N{NO-BREAK SPACE}%" if _has_interval(cell) else ""


def _has_interval(cell: dict) -> bool:
    return cell["low"] is not None and cell["low"] == cell["low"]


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
    """A long local path is cut to its last part; names and Hub ids stay."""
    is_path = identity.count("/") > 1 or identity.startswith((".", "/", "~"))
    return Path(identity).name or identity if is_path else identity


def target(rule: str) -> str:
    return TARGETS.get(rule, f"what {rule} names for each sample")


def verdict(run: RunData) -> list[str]:
    """Sentences: who is told apart from `random`, who leads, which simple baseline is not beaten."""
    chance = next((row for row in run.rows if row.baseline and row.name == "random"), None)
    methods = [row for row in run.rows if not row.baseline]
    said = [NO_CHANCE] if chance is None else _against(run, methods, chance)
    said += [*_simple(run, methods), *_leaders(run)]
    compared = any("beat" in sentence for sentence in said)
    return [*said, "To beat means: a better mean, and 95 % intervals that do not overlap."] if compared else said


def _against(run: RunData, methods: list[Row], chance: Row) -> list[str]:
    """A sentence for each group of explainers that stand alike."""
    groups: dict[tuple, list[str]] = {}
    for row in methods:
        columns = [column for column in run.columns if run.cell(row, column) and run.cell(chance, column)]
        standing = tuple((column.name, compare(run, row, chance, column)) for column in columns)
        groups.setdefault(standing, []).append(row.name)
    return [_standing(names, dict(standing)) for standing, names in groups.items() if standing]


def _standing(names: list[str], standing: dict[str, int]) -> str:
    many = len(names) > 1
    said: list[str] = []
    for sign, verb in (
        (1, "beat" if many else "beats"),
        (-1, "fall behind" if many else "falls behind"),
        (0, "cannot be told apart from"),
    ):
        if where := [column for column, stands in standing.items() if stands == sign]:
            said.append(f"{verb} {'it' if said else 'random noise'} on {_all_or(where, len(standing))}")
    return f"{listed(names)} {', but '.join(said)}."


def _all_or(columns: list[str], known: int) -> str:
    return f"all {known} metrics" if len(columns) == known > 1 else listed(columns)


def compare(run: RunData, row: Row, other: Row, column: Column) -> int:
    """1 if a row is better than the other and their intervals do not overlap, -1 if worse, else 0."""
    one, two = run.cell(row, column), run.cell(other, column)
    if not (one and two and _has_interval(one) and _has_interval(two)):
        return 0
    above, below = one["low"] > two["high"], one["high"] < two["low"]
    return (int(above) - int(below)) * (1 if column.higher_is_better else -1)


def _simple(run: RunData, methods: list[Row]) -> list[str]:
    """Where a baseline that knows nothing of the network does as well as every explainer, or better than one."""
    said = []
    for baseline in [row for row in run.rows if row.baseline and row.name != "random"] if methods else []:
        who = f"{baseline.name}, which does not look at the network,"
        stands = {column.name: [compare(run, row, baseline, column) for row in methods] for column in run.columns
                  if run.cell(baseline, column)}  # fmt: skip
        unbeaten = [name for name, signs in stands.items() if max(signs) < 1]
        if unbeaten:
            said.append(f"No explainer beats {who} on {_all_or(unbeaten, len(stands))}.")
        for index, row in enumerate(methods):
            if behind := [name for name, signs in stands.items() if name not in unbeaten and signs[index] < 0]:
                said.append(f"{row.name} falls behind {who} on {listed(behind)}.")
    return said


def _leaders(run: RunData) -> list[str]:
    leaders: dict[str, list[str]] = {}
    for column in run.columns:
        if names := [row.name for row in best(run, column)]:
            leaders.setdefault(listed(names), []).append(column.name)
    said = [f"{who} on {_all_or(columns, len(run.columns))}" for who, columns in leaders.items()]
    return [f"Best mean score: {'; '.join(said)}."] if len(run.rows) > 1 and said else []


def best(run: RunData, column: Column) -> list[Row]:
    """The rows with the best value, several where they are equal."""
    sign = 1 if column.higher_is_better else -1
    scored = [(sign * cell["value"], row) for row in run.rows if (cell := run.cell(row, column)) and _is_number(cell)]
    return [row for value, row in scored if value == max(value for value, _ in scored)]


def _is_number(cell: dict) -> bool:
    return cell["value"] is not None and cell["value"] == cell["value"]


def leading(cells: Iterable[dict | None], column: Column) -> float | None:
    """The best value there is."""
    values = [cell["value"] for cell in cells if cell and _is_number(cell)]
    return (max if column.higher_is_better else min)(values) if values else None


def faults(run: RunData) -> str:
    """What went wrong, for a notice; nothing where all went well or an older run did not count."""
    if not (counted := run.summary.get("faults")):
        return ""
    total = sum(counted.values())
    return f"{count(total)} {'record has' if total == 1 else 'records have'} no score because something went wrong"


def part_of(share: float, whole: float | None) -> str:
    return seconds(share) + (f", {percent(share / whole)}" if whole else "")


def settings(run: RunData) -> dict[str, str]:
    """What one run may have and another not, as a person reads it."""
    summary = run.summary
    dataset, model = summary["dataset"], summary["model"]
    return {
        "Classifier": short(model["id"]) + (f", revision {model['revision']}" if model["revision"] else ""),
        "Classifier digest": model["digest"][:8],
        "Geometry": model["geometry"],
        "Dataset": f"{short(dataset['id'])}, split {dataset['split']}",
        "Dataset fingerprint": dataset["fingerprint"][:8],
        "Maps explain": target(summary["target"]),
        "Groups": groups(summary),
        "Precision": summary["precision"],
        "Seed": str(summary["seed"]),
        "Batch size": str(summary["batch_size"]),
    }


def groups(summary: dict) -> str:
    """Which groups of classes a run had; equal names may hold other groups, so their digest follows."""
    known = summary.get("groups")
    return f"groups of {known['name']}, digest {known['identity'][:8]}" if known else "no groups of classes"


# What the name of the key already tells, and the words before a setting that would not be understood alone.
FOLLOWS = {"Classifier digest": "Classifier", "Geometry": "Classifier", "Dataset fingerprint": "Dataset"}
PREFIXES = {
    "Classifier digest": "digest ",
    "Dataset fingerprint": "dataset ",
    "Seed": "seed ",
    "Batch size": "batches of ",
}


def label(run: RunData, differing: list[str]) -> str:
    """A run among others, by what differs."""
    known = settings(run)
    return ", ".join(PREFIXES.get(what, "") + known[what] for what in differing if FOLLOWS.get(what) not in differing)


def standings(first: str, second: str, pairs: list[Pair]) -> str:
    """How often one run is told apart from another, and how many of their cells are the same."""
    first, second = first.lower(), second.lower()
    shown = [pair for pair in pairs if not pair.is_same]
    alike = len(pairs) - len(shown)
    known = f"{count(alike)} {'cell is' if alike == 1 else 'cells are'} the same in both."
    if not pairs:
        return "They share no pair of explainer and metric."
    if not shown:
        return known
    better, worse = (sum(pair.standing == sign for pair in shown) for sign in (1, -1))
    many = "pair" if len(shown) == 1 else "pairs"
    said = (
        f"Of {count(len(shown))} {many} of explainer and metric, {second} scores better than {first} on "
        f"{count(better)}, worse on {count(worse)}, and cannot be told apart on {count(len(shown) - better - worse)}."
    )
    return f"{said} {known}" if alike else said


def left_out(run: RunData) -> list[str]:
    """A line per metric: on how many samples, and why not on the others; explainers named only where they differ.

    Which scores stand for something out of the ordinary, besides flat maps, is told beside their number.
    """
    lines = []
    for column in run.columns:
        groups: dict[tuple, list[str]] = {}
        for row in run.rows:
            if cell := run.cell(row, column):
                told = (tuple(cell["left_out"].items()), tuple(cell.get("marked", {}).items()))
                groups.setdefault((cell["n"], *told), []).append(row.name)
        for (scored, why, marked), names in groups.items():
            who = f" of {listed(names)}" if len(groups) > 1 else ""
            without = f"; left out: {reasons(dict(why))}" if why else ", none left out"
            among = f" ({reasons(dict(marked))})" if marked else ""
            lines.append(f"{column.name}{who}: n = {count(scored)}{among}{without}")
    return lines


def flat(run: RunData) -> list[str]:
    """Which explainers gave constant maps, and how many."""
    return [
        f"{row.name} {count(most)}"
        for row in run.rows
        if (most := max(cell["flat"] for column in run.columns if (cell := run.cell(row, column))))
    ]


def metric_notes(run: RunData) -> list[dict]:
    cells = {column.name: next(c for row in run.rows if (c := run.cell(row, column))) for column in run.columns}
    return [_metric_note(name, cell) for name, cell in cells.items()]


def _metric_note(name: str, cell: dict) -> dict:
    direction = "higher is better" if cell["higher_is_better"] else "lower is better"
    note = {"name": name, "options": options(cell["metric_options"]), "direction": direction}
    known = _metric(cell["metric"])
    if known is None:
        return note | {
            "about": "Not known to the version of saliency-bench that made this page.",
            "range": "",
            "paper": "",
        }
    path = registry.files("metrics")[cell["metric"]].with_name("score.py")
    low, high = (f"{bound:g}" for bound in known.range)
    return note | {"about": registry.summary(path), "range": f"from {low} to {high}", "paper": known.paper}


def _metric(name: str) -> Metric | None:
    try:
        return load_metric(name)
    except UserError:
        return None


def explainer_notes(run: RunData) -> list[dict]:
    cells = {row.name: next(c for column in run.columns if (c := run.cell(row, column))) for row in run.rows}
    known = registry.files("explainers")
    return [
        {"name": name, "options": options(cell["explainer_options"]), "about": _explainer_about(cell, known)}
        for name, cell in cells.items()
    ]


def _explainer_about(cell: dict, known: dict[str, Path]) -> str:
    if str(cell["explainer_version"]).startswith(PRECOMPUTED):
        return "Maps that were made elsewhere and handed in."
    if isinstance(cell["explainer_version"], str):
        return "A Python function that was handed to this run."
    if cell["explainer"] not in known:
        return UNKNOWN
    # Numbers of the project's own reading list say nothing to a reader of the page.
    return re.sub(r"\s*\(P\d[^()]*\)|; P\d[^()]*(?=\))", "", registry.summary(known[cell["explainer"]]))
