"""The report of a run: one HTML page that needs nothing else, to show to a colleague."""

import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from markupsafe import Markup

from saliency_bench import __version__
from saliency_bench.analysis.comparison import Comparison, MergedRuns, Pair, compare, names_of, same
from saliency_bench.errors import UserError
from saliency_bench.reports import words
from saliency_bench.reports.figures import (
    HEIGHT,
    agreement,
    difference_bars,
    difference_means,
    distributions,
    intervals,
)
from saliency_bench.reports.samples import sample_groups
from saliency_bench.results.run_folder import Column, Row, RunData, read_run
from saliency_bench.utils.files import write_text

HERE = Path(__file__).parent
NAME = "report.html"


def report(folders: Sequence[str | Path], out: str | Path | None = None) -> Path:
    """Write the page of one run, or of several side by side, and return its path.

    folders: what `run` wrote. out: a file or folder; by default report.html in the folder of the only run. Neither
    model nor dataset is needed, and equal folders give equal bytes. Of several runs, cells with the same id are shown
    once, or as a conflict where their scores differ; the first run is compared with each other one, sample by sample.

    Raises: UserError for a folder that holds no finished run, a file of it that cannot be read, or no place to write.
    """
    chosen = [Path(folder) for folder in ([folders] if isinstance(folders, str | Path) else folders)]
    if not chosen:
        raise UserError("a report needs the folder of at least one run")
    path = place(chosen, None if out is None else Path(out))
    return write_page([read_run(folder) for folder in chosen], path)


def write_page(runs: list[RunData], path: Path, comparison: Comparison | None = None) -> Path:
    """The page of runs that were read, and compared if there are several."""
    page = _template().render(page_of(runs, comparison or compare(runs)))
    try:
        write_text(path, page)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}; choose another --out") from error
    return path


def place(folders: list[Path], out: Path | None) -> Path:
    """Where the page goes. Raises: UserError for several runs without a place."""
    if out is None and len(folders) > 1:
        raise UserError("a report of several runs needs a file to write: --out report.html")
    if out is None:
        return folders[0] / NAME
    return out / NAME if out.is_dir() else out


@cache
def _template() -> Template:
    environment = Environment(
        loader=FileSystemLoader(HERE), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {
        "number": words.number,
        "interval": words.interval,
        "percent": words.percent,
        "percent_interval": words.percent_interval,
        "count": words.count,
        "seconds": words.seconds,
        "reasons": words.reasons,
        "listed": words.listed,
        "short": words.short,
        "signed": words.signed,
        "signed_interval": words.signed_interval,
        "breakable": _breakable,
    }
    environment.globals |= {"HEIGHT": HEIGHT}
    return environment.get_template("report.html.j2")


def _breakable(name: str) -> Markup:
    """A long name may be broken after these signs."""
    escaped = str(Markup.escape(name))
    for sign in "_:,":
        escaped = escaped.replace(sign, f"{sign}<wbr>")
    return Markup(escaped)


def _coded(text: str, names: list[str]) -> Markup:
    """A text with the names in it set apart from its words."""
    longest_first = sorted((re.escape(str(Markup.escape(name))) for name in names), key=len, reverse=True)
    pattern = rf"(?<![\w-])({'|'.join(longest_first)})(?![\w:-])"
    return Markup(re.sub(pattern, r"<code>\1</code>", str(Markup.escape(text))))


def page_of(runs: list[RunData], comparison: Comparison) -> dict[str, Any]:
    """What the template shows: what runs share and where they differ, if there are several; then each by itself."""
    views = [
        view_of(group.data) | {"name": group.name, "anchor": f"run-{group.members[0]}", "merged": _merged(group)}
        for group in comparison.groups
    ]
    return {
        "style": Markup((HERE / "report.css").read_text(encoding="utf-8")),
        "runs": views,
        "several": several(runs, comparison) if len(runs) > 1 else None,
        "version": __version__,
    }


def view_of(run: RunData) -> dict[str, Any]:
    """One run, in the order of the page."""
    names = [row.name for row in run.rows] + [column.name for column in run.columns]
    return {
        **{key: run.summary[key] for key in ("dataset", "model", "masks", "command")},
        "target": words.target(run.summary["target"]),
        "verdict": _coded(" ".join(words.verdict(run)), names),
        "columns": run.columns,
        "table": _table(run),
        "left_out": words.left_out(run),
        "faults": words.faults(run),
        "fault_reasons": run.summary.get("faults", {}),
        "flat": words.flat(run),
        "plots": [(column, intervals(run, column), distributions(run, column)) for column in run.columns],
        "agreement": agreement(run),
        "chosen_by": run.summary["cells"][0]["metric_text"],
        "groups": sample_groups(run),
        "metrics": words.metric_notes(run),
        "explainers": words.explainer_notes(run),
        "facts": _facts(run),
        "costs": [(row.name, _seconds(run, row), _passes(run, row)) for row in run.rows],
        "cells": _cells(run),
    }


def _table(run: RunData) -> list[dict]:
    best = {column.key: words.best(run, column) for column in run.columns}
    return [
        {"name": row.name, "baseline": row.baseline,
         "cells": [(run.cell(row, column), row in best[column.key]) for column in run.columns]}
        for row in run.rows
    ]  # fmt: skip


def _facts(run: RunData) -> list[tuple[str, str]]:
    """With what the numbers were made: (what, which)."""
    summary, made = run.summary, run.summary["provenance"]
    dataset, model = summary["dataset"], summary["model"]
    libraries = ", ".join(f"{name} {version}" for name, version in made.get("libraries", {}).items())
    facts = {
        "Dataset": f"{dataset['id']}, split {dataset['split']}, {words.count(dataset['used'])} of "
        f"{words.count(dataset['samples'])} samples, {dataset['classes']} classes",
        "Dataset fingerprint": dataset["fingerprint"],
        "Classifier": model["id"] + (f", revision {model['revision']}" if model["revision"] else ""),
        "Classifier digest": model["digest"],
        "Geometry": model["geometry"],
        "Target rule": summary["target"],
        "Precision, seed, batch size": f"{summary['precision']}, {summary['seed']}, {summary['batch_size']}",
        "Software": f"saliency-bench {made.get('saliency_bench')}, Python {made.get('python')}, {made.get('system')}",
        "Libraries": libraries,
        "Hardware": f"{made.get('device')}; {made.get('processor')}",
        "Duration of the last start": words.seconds(run.timings.get("seconds")),
    }
    if summary.get("groups"):
        facts["Classes in groups"] = words.groups(summary)
    if (waited := run.timings.get("waiting_for_data")) is not None:
        facts["Of it waiting for data"] = words.part_of(waited, run.timings.get("seconds"))
    if (halved := summary.get("halved_chunks")) is not None:
        facts["Batches halved for want of memory"] = words.count(halved)
    return [(what, str(which)) for what, which in facts.items()]


def _seconds(run: RunData, row: Row) -> float | None:
    return run.timings.get("explainers", {}).get(row.text)


def _passes(run: RunData, row: Row) -> float | None:
    """Images put through the classifier per sample, to explain it."""
    cells = [cell for column in run.columns if (cell := run.cell(row, column))]
    return max(cell["forward_passes"]["explain"] / max(cell.get("computed", run.computed), 1) for cell in cells)


def _cells(run: RunData) -> list[tuple[str, str, dict]]:
    return [
        (row.name, column.name, cell) for row in run.rows for column in run.columns if (cell := run.cell(row, column))
    ]


def several(runs: list[RunData], comparison: Comparison) -> dict[str, Any]:
    """What only a page of several runs has."""
    alike, differing = _settings(runs)
    first, *_ = comparison.groups
    return {
        "count": len(runs),
        "runs": [
            {
                "name": f"Run {number}",
                "folder": run.folder.resolve().name,
                "anchor": next(f"run-{group.members[0]}" for group in comparison.groups if number in group.members),
                "settings": [words.settings(run)[what] for what in differing],
                "cells": len(run.summary["cells"]),
                "faults": sum(run.summary.get("faults", {}).values()),
                **{key: run.summary[key] for key in ("dataset", "model", "masks")},
            }
            for number, run in enumerate(runs, start=1)
        ],
        "alike": alike,
        "differing": differing,
        "merged": [group.name for group in comparison.groups if len(group.members) > 1],
        "conflicts": comparison.conflicts,
        "groups": _labels(comparison.groups),
        "comparisons": _comparisons(comparison) if len(comparison.groups) > 1 else [],
        "marks_runs": _same_samples(comparison.groups),
        "first": first.name,
        "differences": [_difference(first, group, reason, found) for group, reason, found in comparison.differences],
    }


def _settings(runs: list[RunData]) -> tuple[dict[str, str], list[str]]:
    """(what is the same in all runs, the names of what is not)."""
    known = [words.settings(run) for run in runs]
    differing = [what for what in known[0] if len({one[what] for one in known}) > 1]
    return {what: which for what, which in known[0].items() if what not in differing}, differing


def _labels(groups: list[MergedRuns]) -> list[tuple[str, str]]:
    """(name, what tells it from the others); the folder where nothing else does."""
    said = [words.label(group.data, _settings([one.data for one in groups])[1]) for group in groups]
    folders = [", ".join(run.folder.resolve().name for run in group.runs) for group in groups]
    unique = len(set(said)) == len(said)
    return [
        (group.name, text if unique else ", ".join(filter(None, (text, folder))))
        for group, text, folder in zip(groups, said, folders, strict=True)
    ]


def _merged(group: MergedRuns) -> list[str]:
    """Where the cells of a group come from, a line per run."""
    if len(group.members) == 1:
        return []
    return [
        f"Run {number}: folder {run.folder.resolve().name}, {words.count(len(run.summary['cells']))} cells over "
        f"{words.count(run.summary['dataset']['used'])} samples, made on "
        f"{run.summary['provenance'].get('device')}; {run.summary['provenance'].get('processor')}"
        for number, run in zip(group.members, group.runs, strict=True)
    ]


def _same_samples(groups: list[MergedRuns]) -> bool:
    """Whether runs may be ranked: scores over other pictures say nothing of which is better."""
    datasets = [group.data.summary["dataset"] for group in groups]
    return len({(one["fingerprint"], one["split"], one["used"]) for one in datasets}) == 1


def _comparisons(comparison: Comparison) -> list[dict]:
    """A table per metric: explainers down, runs across."""
    groups = comparison.groups
    names = names_of([group.data for group in groups])
    cells = [
        {(names.key(cell, "metric"), names.key(cell, "explainer")): cell for cell in group.data.summary["cells"]}
        for group in groups
    ]
    columns: dict[tuple, Column] = {}
    rows: dict[tuple, Row] = {}
    for group in groups:
        for row in group.data.rows:
            for column in group.data.columns:
                if cell := group.data.cell(row, column):
                    metric, explainer = names.key(cell, "metric"), names.key(cell, "explainer")
                    columns.setdefault(metric, Column(metric, names.text(cell, "metric"), cell["higher_is_better"]))
                    name = names.text(cell, "explainer")
                    rows.setdefault(explainer, Row(str(explainer), name, name, row.baseline))
    ordered = sorted(rows.items(), key=lambda item: item[1].baseline)
    return [
        {
            "column": column,
            "rows": _compared(comparison, column, {row: [one.get((key, at)) for one in cells] for at, row in ordered}),
        }
        for key, column in columns.items()
    ]


def _compared(comparison: Comparison, column: Column, table: dict[Row, list[dict | None]]) -> list[dict]:
    """The rows of one table, each score with what is to be said of it."""
    table = {row: cells for row, cells in table.items() if any(cells)}
    conflicting = {conflict["cell_id"] for conflict in comparison.conflicts}
    leaders = [
        words.leading([cells[index] for cells in table.values()], column) for index in range(len(comparison.groups))
    ]
    ranked = _same_samples(comparison.groups)
    return [
        {
            "name": row.name,
            "baseline": row.baseline,
            "cells": [
                cell
                and {
                    "cell": cell,
                    "tags": [
                        *(["best explainer"] if len(table) > 1 and cell["value"] == leaders[index] else []),
                        *(["best run"] if ranked and _stands_out(cell, cells, column) else []),
                        *(["conflict"] if cell["cell_id"] in conflicting else []),
                    ],
                    "as": next(
                        (
                            group.name.lower()
                            for group, other in zip(comparison.groups, cells[:index], strict=False)
                            if other and _shown_before(cell, other, conflicting)
                        ),
                        None,
                    ),
                }
                for index, cell in enumerate(cells)
            ],
        }
        for row, cells in table.items()
    ]


def _stands_out(cell: dict, cells: list[dict | None], column: Column) -> bool:
    """The best of a row whose values are not all the same."""
    known = {one["value"] for one in cells if one and one["value"] is not None}
    return len(known) > 1 and cell["value"] == words.leading(cells, column)


def _shown_before(cell: dict, other: dict, conflicting: set[str]) -> bool:
    is_one = cell["cell_id"] == other["cell_id"] and cell["n"] == other["n"]
    return (
        is_one
        and cell["cell_id"] not in conflicting
        and cell["value"] is not None
        and same(cell["value"], other["value"])
    )


def _difference(first: MergedRuns, group: MergedRuns, reason: str | None, found: list[Pair]) -> dict:
    """One run against the first: in a sentence, and a table with plots for each metric."""
    known = words.settings(first.data), words.settings(group.data)
    shown = [pair for pair in found if not pair.is_same]
    by_metric: dict[str, list[Pair]] = {}
    for pair in shown:
        by_metric.setdefault(pair.metric, []).append(pair)
    return {
        "name": group.name,
        "anchor": f"difference-{group.members[0]}",
        "changed": [(what, which, known[1][what]) for what, which in known[0].items() if which != known[1][what]],
        "reason": reason,
        "verdict": words.standings(first.name, group.name, found),
        "metrics": [
            {
                "name": name,
                "higher_is_better": rows[0].higher_is_better,
                "pairs": rows,
                "means": difference_means(rows),
                "bars": difference_bars(rows),
                "largest": [(pair, pair.largest) for pair in rows if pair.largest],
            }
            for name, rows in by_metric.items()
        ],
    }
