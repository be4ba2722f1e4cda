"""The report of a run: one HTML page that needs nothing else, to show to a colleague."""

import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from markupsafe import Markup

from saliency_bench import __version__
from saliency_bench import report_words as words
from saliency_bench.errors import UserError
from saliency_bench.files import write_text
from saliency_bench.report_data import Column, Row, RunData, read_run
from saliency_bench.report_figures import HEIGHT, agreement, distributions, intervals
from saliency_bench.report_samples import sample_groups

HERE = Path(__file__).parent
NAME = "report.html"


def report(folders: Sequence[str | Path], out: str | Path | None = None) -> Path:
    """Write the page of one run, or of several side by side, and return its path.

    folders: what `run` wrote. out: a file or folder; by default report.html in the folder of the only run. Neither
    model nor dataset is needed, and equal folders give equal bytes.

    Errors: UserError for a folder that holds no finished run, a file of it that cannot be read, or no place to write.
    """
    chosen = [Path(folder) for folder in ([folders] if isinstance(folders, str | Path) else folders)]
    if not chosen:
        raise UserError("a report needs the folder of at least one run")
    path = _place(chosen, None if out is None else Path(out))
    page = _template().render(page_of([read_run(folder) for folder in chosen]))
    try:
        write_text(path, page)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}; choose another --out") from error
    return path


def _place(folders: list[Path], out: Path | None) -> Path:
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


def page_of(runs: list[RunData]) -> dict[str, Any]:
    """What the template shows."""
    views = [view_of(run) | {"anchor": f"run-{number}"} for number, run in enumerate(runs, start=1)]
    return {
        "style": Markup((HERE / "report.css").read_text(encoding="utf-8")),
        "runs": views,
        "comparisons": comparisons(runs) if len(runs) > 1 else [],
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
    return [(what, str(which)) for what, which in facts.items()]


def _seconds(run: RunData, row: Row) -> float | None:
    return run.timings.get("explainers", {}).get(row.text)


def _passes(run: RunData, row: Row) -> float | None:
    """Images put through the classifier per sample, to explain it. Chunks are computed whole, also the last."""
    dataset, size = run.summary["dataset"], run.summary["batch_size"]
    computed = min(-(-dataset["used"] // size) * size, dataset["samples"])
    explained = max(cell["forward_passes"]["explain"] for column in run.columns if (cell := run.cell(row, column)))
    return explained / computed if computed else None


def _cells(run: RunData) -> list[tuple[str, str, dict]]:
    return [
        (row.name, column.name, cell) for row in run.rows for column in run.columns if (cell := run.cell(row, column))
    ]


def comparisons(runs: list[RunData]) -> list[dict]:
    """A table per metric: explainers down, runs across. Equal names of different versions are kept apart."""
    columns = {column.key: column for run in runs for column in run.columns}
    return [{"column": column, "rows": _compared(runs, column)} for column in columns.values()]


def _compared(runs: list[RunData], column: Column) -> list[dict]:
    rows = {row.key: row for run in runs for row in run.rows}
    return [
        {"name": row.name, "baseline": row.baseline, "cells": cells}
        for row in sorted(rows.values(), key=lambda row: row.baseline)
        if any(cells := [run.cell(row, column) for run in runs])
    ]
