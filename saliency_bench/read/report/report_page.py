"""Write the report of one or more runs as a single HTML page that loads no other files."""

import re
from base64 import b64encode
from collections.abc import Sequence
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

from markupsafe import Markup

from saliency_bench.errors import UserError
from saliency_bench.read.accuracy import below_chance
from saliency_bench.read.analysis.cards import below
from saliency_bench.read.analysis.comparison import Comparison, compare_runs
from saliency_bench.read.analysis.correlations import metric_agreement
from saliency_bench.read.analysis.verdict import Verdict
from saliency_bench.read.cell import of_samples
from saliency_bench.read.cell_table import CellTable, ExplainerRow, MetricColumn
from saliency_bench.read.finished_run import Run, folder_of, read_run
from saliency_bench.read.report import words
from saliency_bench.read.report.all_samples import write_samples
from saliency_bench.read.report.comparison_page import comparison_view, merged_name, run_names
from saliency_bench.read.report.plots import distribution_plot, mean_plot, rank_plot
from saliency_bench.read.report.sample_pictures import sample_groups, split_strips
from saliency_bench.read.report.templates import render, source
from saliency_bench.read.statistics.reliability import reliability_line
from saliency_bench.read.summary import explained, maps_line
from saliency_bench.utils.files import write_text
from saliency_bench.utils.messages import complain
from saliency_bench.utils.storage import check_output_file

NAME = "report.html"


def report(folders: Any, out: str | Path | None = None, *, samples: bool = False, data: object = None) -> Path:
    """Write the page of one run, or of several runs side by side, and return the path of the page.

    Neither the model nor the dataset is needed, and the same folders always give the same bytes. Runs with the same
    settings are merged, and all their explainers are ranked together. If cells of two runs conflict, the runs are not
    merged and the page lists the conflicts. The first run is compared with every run that is not merged with it, sample
    by sample.

    Args:
        folders: One or several runs, as folders or results of `run`.
        out: File or folder; by default report.html in the folder of the run. Required for several runs.
        samples: Whether to also write report-samples.html, a page of all samples, next to the report of a single run.
        data: Dataset of the run (as for `load_dataset`) that provides the images on the page of all samples. Defaults
            to the dataset that the run used, if it is a folder that still exists.

    Raises:
        UserError: A folder contains no finished run, a file in it cannot be read, or `out` is missing or cannot be
            written; `samples` is set for several runs; or `data` is not the dataset of the run.
    """
    runs = list(folders) if isinstance(folders, Sequence) and not isinstance(folders, str) else [folders]
    chosen = distinct([folder_of(run) for run in runs])
    if not chosen:
        raise UserError("a report needs at least one run; pass its folder")
    path = page_path(chosen, None if out is None else Path(out))
    return write_page([read_run(folder) for folder in chosen], path, samples=samples, data=data)


def distinct(folders: Sequence[str | Path]) -> list[Path]:
    """Return each folder once, and print a warning about repeated folders."""
    by_path: dict[Path, Path] = {}
    for folder in map(Path, folders):
        if folder.resolve() in by_path:
            complain(f"{folder} is listed twice, but is read only once")
        by_path.setdefault(folder.resolve(), folder)
    return list(by_path.values())


def write_page(
    runs: list[Run], path: Path, comparison: Comparison | None = None, *, samples: bool = False, data: object = None
) -> Path:
    """Write the page of runs that have been read (see `report`). `comparison` is computed if it is None."""
    if len(runs) > 1 and samples:
        raise UserError("all samples can be shown for only one run; give one folder")
    if data is not None and not samples:
        raise UserError(
            "data (--data) is used only for the page of all samples; request that page with samples (--samples)"
        )
    view = page_of(runs, comparison or compare_runs(runs))
    if samples:
        view["runs"][0]["all_samples"] = write_samples(runs[0], path, data).name
    write_text(path, render("report.html.j2", **view))
    return path


def page_path(folders: list[Path], out: Path | None) -> Path:
    """Return the path of the page.

    Raises:
        UserError: `out` is missing for several runs, or is an existing file that is not an HTML page.
    """
    if out is None and len(folders) > 1:
        raise UserError("a report of several runs needs an output file; give one, such as --out report.html")
    if out is None:
        return folders[0] / NAME
    path = out / NAME if out.is_dir() else out
    check_output_file(path)
    if path.exists() and path.suffix.lower() not in (".html", ".htm"):
        raise UserError(f"{path} exists and is not an HTML page; give a file name that ends in .html as --out")
    return path


def _coded(text: str, names: list[str]) -> Markup:
    longest_first = sorted((re.escape(str(Markup.escape(name))) for name in names), key=len, reverse=True)
    pattern = rf"(?<![\w-])({'|'.join(longest_first)})(?![\w-]|:\S)"
    return Markup(re.sub(pattern, r"<code>\1</code>", str(Markup.escape(text))))


def page_of(runs: list[Run], comparison: Comparison) -> dict[str, Any]:
    """Return the variables of the template: the comparison of several runs, and the content of each run."""
    script = f"\n{source('report.js')}"  # the exact text between the tags, which is hashed
    return {
        "script": Markup(script),
        "script_digest": b64encode(sha256(script.encode()).digest()).decode(),
        "runs": [_merged_view(run, comparison, run_names(runs)) for run in comparison.merged],
        "several": comparison_view(runs, comparison) if len(runs) > 1 else None,
    }


def _merged_view(run: Run, comparison: Comparison, names: list[str]) -> dict[str, Any]:
    """Return the variables of a single or merged run; `names` are the names of all runs."""
    anchor = f"run-{comparison.numbers(run)[0]}"
    name, origins = merged_name(run, comparison, names), _origins(run, comparison, names)
    return run_view(run) | {"name": name, "anchor": anchor, "origins": origins}


def _origins(merged: Run, comparison: Comparison, names: list[str]) -> list[str]:
    """Return one line for each of several merged runs, with its number of cells and its hardware; [] for one run."""
    return [
        f"{names[number - 1]}: {words.count(len(run.cells))} cells over "
        f"{words.count(run.summary['dataset']['used'])} samples, computed on "
        f"{run.summary['provenance'].get('device')}; {run.summary['provenance'].get('processor')}"
        for number, run in zip(comparison.numbers(merged), merged.runs, strict=False)
    ]


def run_view(run: Run) -> dict[str, Any]:
    """Return the template variables that describe one run, in the order in which the page shows them."""
    names = [row.name for row in run.table.rows] + [column.name for column in run.table.columns]
    verdict = Verdict(run.cells, run.contrasts)
    strips, groups = split_strips(sample_groups(run))
    return {
        **{key: run.summary[key] for key in ("dataset", "model", "masks", "command")},
        "grouped": any(group is not None for group in run.scores.groups),
        "accuracy": run.accuracy,
        "below_chance": below_chance(run.summary["model"]),
        "quality": words.quality(run.summary["model"]),
        "other": words.other_model(run.summary.get("other_model")),
        "target": explained(run.summary["target"]),
        "only": run.summary.get("only"),
        "cards": words.cards(verdict),
        "alerts": words.alerts(verdict),
        "below": below(verdict),
        "verdict": [_coded(sentence, names) for sentence in verdict.sentences()],
        "columns": run.table.columns,
        "table": _table(run),
        "best": run.table.best,
        "ranked": any(cell.rank for cell in run.cells),
        "intervals": any(cell.ends for cell in run.cells),
        "against": words.against_baselines(run),
        "alike": partial(words.alike, run),
        "pairs": words.pairs(run),
        "compared": len(run.contrasts),
        "left_out": words.left_out(run),
        "common": words.common(run),
        "faults": words.faults(run.summary),
        "fault_reasons": run.summary["faults"],
        "notes": words.notes(run),
        "flat": words.flat(run.cells),
        "maps": _coded(maps_line(run.summary, run.cells), names),
        "reliability": reliability_line(run.summary, run.cells),
        "plots": [_plots(run, column) for column in run.table.columns],
        "agreement": metric_agreement(run.table, run.scores),
        "chosen_by": next((cell.metric_text for cell in of_samples(run.cells)), None),
        "strips": strips,
        "sample_groups": groups,
        "all_samples": "",
        "metrics": words.metric_notes(run.table),
        "explainers": words.explainer_notes(run.table),
        "citations": words.citations(run),
        "facts": _facts(run),
        "costs": [(row.name, _seconds(run, row), _passes(run, row)) for row in run.table.rows],
        "cells": _cells(run.table),
    }


def _plots(run: Run, column: MetricColumn) -> dict[str, Any]:
    """Return the plots of a metric: the means, the ranks and, if samples have scores, their distribution."""
    cells = run.table.cells_of_column(column)
    spread, caption = "", ""
    if any(not cell.aggregate for _, cell in cells):
        spread, caption = distribution_plot(run.table, run.scores, column)
    return {
        "column": column,
        "means": Markup(mean_plot(run.table, column)),
        "ranks": Markup(rank_plot(run.table, column)),
        "spread": Markup(spread),
        "caption": caption,
        "has_band": any(row.baseline and row.name == "random" and cell.ends for row, cell in cells),
    }


def _table(run: Run) -> list[dict]:
    return [
        {"name": row.name, "baseline": row.baseline, "reliability": run.reliability.get(row.explainer_id),
         "cells": [run.table.cell(row, column) for column in run.table.columns]}
        for row in run.table.rows
    ]  # fmt: skip


def _facts(run: Run) -> list[tuple[str, str]]:
    """Return the settings, versions and hardware of a run as [(label, value)]."""
    summary, made_with = run.summary, run.summary["provenance"]
    dataset, model = summary["dataset"], summary["model"]
    libraries = ", ".join(f"{name} {version}" for name, version in made_with.get("libraries", {}).items())
    facts = {
        "Dataset": f"{dataset['id']}, split {dataset['split']}, {words.count(dataset['used'])} of "
        f"{words.count(dataset['samples'])} samples, {dataset['classes']} classes{words.origin(dataset)}",
        "Dataset fingerprint": dataset["fingerprint"],
        **({"Images chosen by": f"{chooser}, another classifier"} if (chooser := dataset.get("chosen_by")) else {}),
        "Classifier": model["id"] + words.origin(model),
        "Classifier digest": model["digest"],
        "Geometry": model["geometry"],
        "Target rule": summary["target"],
        "Precision, seed, batch size": f"{summary['precision']}, {summary['seed']}, {_batch_sizes(summary)}",
        "Software": f"saliency-bench {made_with.get('saliency_bench')}, Python {made_with.get('python')}, "
        f"{made_with.get('system')}",
        "Libraries": libraries,
        "Hardware": f"{made_with.get('device')}; {made_with.get('processor')}",
        "Duration (last execution)": words.seconds(run.timings.get("seconds")),
        "Peak memory (last execution)": words.memory(run.timings.get("peak_memory"), made_with.get("device") != "cpu"),
    }
    if summary.get("groups"):
        facts["Groups of classes"] = words.class_groups(summary)
    if (waiting := run.timings.get("waiting_for_data")) is not None:
        facts["Time waiting for data"] = words.part_of(waiting, run.timings.get("seconds"))
    facts["Batches halved to fit into memory"] = words.count(summary["halved_chunks"])
    return [(label, str(value)) for label, value in facts.items()]


def _batch_sizes(summary: dict) -> str:
    """Return the batch size of a run, or all batch sizes if calls of `run` used different batch sizes."""
    return " and ".join(map(str, summary.get("batch_sizes") or [summary["batch_size"]]))


def _seconds(run: Run, row: ExplainerRow) -> float | None:
    """Return the computing time of an explainer in seconds; None if it is unknown."""
    return run.timings.get("explainers", {}).get(row.explainer_id)


def _passes(run: Run, row: ExplainerRow) -> float:
    """Return the number of images that an explainer passes through the classifier per sample."""
    return max(
        cell.forward_passes.explain / max(run.origins[cell.cell_id].samples_explained, 1)
        for cell in run.table.cells_of_row(row)
    )


def _cells(table: CellTable) -> list[tuple]:
    """Return [(explainer, metric, cell)]."""
    return [(row.name, column.name, cell) for row in table.rows for column in table.columns
            if (cell := table.cell(row, column))]  # fmt: skip
