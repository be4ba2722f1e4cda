"""The summary of a run: one number with its interval per cell, what was left out and why, and with what it was made."""

from array import array
from collections import Counter, defaultdict
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import torch

from saliency_bench.reasons import FLAT, MARKS, is_expected
from saliency_bench.results import records
from saliency_bench.results.statistics import bootstrap, contrasts, ranks
from saliency_bench.utils.files import read_json, write_json
from saliency_bench.utils.provenance import provenance

FORMAT = 1
NAN = float("nan")
LEGEND = "95 % bootstrap intervals in brackets; #: rank, 1 + how many explainers a paired test finds better"


def summarise(context, samples: int, command: str) -> dict:
    """Write and return summary.json of a run's records and predictions."""
    folder = context.out
    plan = read_json(folder / "run.json")
    predictions = pq.read_table(folder / "predictions.parquet", columns=["correct", "mask_share", "left_out"])
    scores, reasons, marks = _by_cell(folder / "records.parquet")
    cells = [cell_id for cell_id in plan["cells"] if cell_id in scores]
    seed = context.spec.seed
    compared, ranked = _compared(plan["cells"], scores, cells, seed)
    passes, halved = _passes(folder, list(plan["cells"]), -(-samples // context.spec.batch_size))
    summary = {
        "format": FORMAT,
        "dataset": {
            "id": context.dataset,
            "split": context.spec.split,
            "fingerprint": plan["identity"]["fingerprint"],
            "samples": len(context.rows),
            "used": samples,
            "classes": len(context.names),
        },
        "model": {
            "id": context.classifier.id,
            "revision": context.classifier.revision,
            "digest": plan["identity"]["classifier"],
            "geometry": str(context.classifier.geometry),
            "accuracy": _interval(np.array(predictions["correct"].drop_null().to_pylist(), dtype=float), seed),
        },
        "masks": _masks(predictions),
        "target": context.rule.name,
        "groups": None
        if context.groups is None
        else {"name": context.groups.name, "identity": context.groups.identity},
        "precision": plan["identity"]["precision"],
        "seed": seed,
        "batch_size": context.spec.batch_size,
        "cells": [
            plan["cells"][cell_id]
            | _cell(scores[cell_id], reasons[cell_id], marks[cell_id], seed)
            | {"forward_passes": passes[cell_id], "rank": ranked.get(cell_id)}
            for cell_id in cells
        ],
        "comparisons": compared,
        "faults": _faults(reasons),
        "halved_chunks": halved,
        "command": command,
        "provenance": provenance(torch.device(context.classifier.device)),
    }
    write_json(folder / "summary.json", summary)
    return read_json(folder / "summary.json")  # where what is not known is None


def _by_cell(path: Path) -> tuple[dict[str, array], dict[str, Counter], dict[str, Counter]]:
    """{cell: its values in the order of the samples, NaN where there is none}, {cell: how often each reason for leaving
    a sample out occurs}, {cell: the same of what must be known beside a value}."""
    scores: dict[str, array] = defaultdict(lambda: array("d"))
    reasons: dict[str, Counter] = defaultdict(Counter)
    marks: dict[str, Counter] = defaultdict(Counter)
    for batch in pq.ParquetFile(path).iter_batches(columns=["cell_id", "part", "value", "reason"]):
        for cell, part, value, reason in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            if part is not None:
                continue
            scores[cell].append(NAN if value is None else value)
            if value is None:
                reasons[cell][reason] += 1
            elif reason is not None:
                marks[cell].update(reason.split(MARKS))
    return scores, reasons, marks


def _faults(reasons: dict[str, Counter]) -> dict[str, int]:
    """{what went wrong: how many records it emptied}"""
    total: Counter = sum(reasons.values(), Counter())
    return {reason: count for reason, count in sorted(total.items()) if not is_expected(reason)}


def _passes(folder: Path, cells: list[str], chunks: int) -> tuple[dict[str, dict[str, int]], int]:
    """{cell: images its explainer put through the classifier, and its metric beyond what earlier metrics shared}, and
    how often a batch was halved for want of memory. Both are of whole chunks, also where a limit cuts the last one."""
    passes = {cell: {"explain": 0, "metric": 0} for cell in cells}
    halved = 0
    for part in (folder / "chunks").glob("*/*.parquet"):
        if int(part.name[:6]) < chunks:
            notes = records.notes_of(part)
            halved += notes["halved"]
            for cell in notes["cells"]:
                passes[cell]["explain"] += notes["passes"].get("explain", 0)
                passes[cell]["metric"] += notes["passes"].get(cell, 0)
    return passes, halved


def _compared(
    plan: dict[str, dict], scores: dict[str, array], planned: list[str], seed: int
) -> tuple[list[dict], dict[str, int | None]]:
    """Of each metric that is a mean: its explainers in pairs on the samples that both have, and {cell: its rank}."""
    columns: dict[tuple, list[str]] = {}
    for cell_id in planned:
        columns.setdefault((plan[cell_id]["metric_text"], plan[cell_id]["metric_version"]), []).append(cell_id)
    found: list[dict] = []
    ranked: dict[str, int | None] = {}
    for (text, _), cells in columns.items():
        if len(cells) < 2:
            continue
        values = np.stack([np.array(scores[cell_id]) for cell_id in cells], axis=1)
        pairs = contrasts(values, seed)
        ranked |= zip(cells, ranks(values, pairs, plan[cells[0]]["higher_is_better"]), strict=True)
        for pair in pairs:
            ids = cells[pair.first], cells[pair.second]
            names = {"explainers": [plan[cell_id]["explainer_text"] for cell_id in ids], "cells": list(ids)}
            numbers = {key: value for key, value in asdict(pair).items() if key not in ("first", "second")}
            found.append({"metric": text} | names | numbers)
    return found, ranked


def _cell(values: array, reasons: Counter, marks: Counter, seed: int) -> dict:
    flat = marks.pop(FLAT, 0)
    numbers = np.array(values, dtype=float)
    interval = _interval(numbers[~np.isnan(numbers)], seed)
    return interval | {"left_out": dict(sorted(reasons.items())), "flat": flat, "marked": dict(sorted(marks.items()))}


def _interval(values: np.ndarray, seed: int) -> dict:
    value, low, high = bootstrap(values, seed=seed)
    return {"value": value, "low": low, "high": high, "n": len(values)}


def _masks(predictions) -> dict:
    shares = [share for share in predictions["mask_share"].to_pylist() if share is not None]
    left_out = Counter(reason for reason in predictions["left_out"].to_pylist() if reason is not None)
    return {
        "usable": len(shares),
        "mean_share": float(np.mean(shares)) if shares else None,
        "left_out": dict(sorted(left_out.items())),
    }


def table(summary: dict) -> str:
    """The cells as text: a row per explainer, a column per metric, value [low, high] #rank; n where some have none."""
    metrics = list(dict.fromkeys(cell["metric_text"] for cell in summary["cells"]))
    explainers = list(dict.fromkeys(cell["explainer_text"] for cell in summary["cells"]))
    by_place = {(cell["explainer_text"], cell["metric_text"]): cell for cell in summary["cells"]}
    arrows = {cell["metric_text"]: "↑" if cell["higher_is_better"] else "↓" for cell in summary["cells"]}
    header = ["explainer", *(f"{metric} {arrows[metric]}" for metric in metrics)]
    used = summary["dataset"]["used"]
    body = [[name, *(_number(by_place.get((name, metric)), used) for metric in metrics)] for name in explainers]
    widths = [max(map(len, column)) for column in zip(header, *body, strict=True)]
    lines = ["  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)) for row in [header, *body]]
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(line.rstrip() for line in lines)


def _number(cell: dict | None, used: int) -> str:
    if cell is None or cell["value"] is None or cell["value"] != cell["value"]:
        return "-"
    interval = "" if cell["low"] is None or cell["low"] != cell["low"] else f" [{cell['low']:.3f}, {cell['high']:.3f}]"
    rank = f" #{cell['rank']}" if cell.get("rank") else ""
    fewer = "" if cell["n"] == used else f" n={cell['n']}"
    return f"{cell['value']:.3f}{interval}{rank}{fewer}"
