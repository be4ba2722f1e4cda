"""The summary of a run: per cell a score with its interval, what was left out and why; versions and hardware."""

from array import array
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from saliency_bench.reasons import FLAT, MARKS, is_expected
from saliency_bench.results import records
from saliency_bench.results.cell import CellKey, CellResult, ForwardPasses, Interval, PartResult, as_json
from saliency_bench.results.manifest import read_manifest
from saliency_bench.results.statistics import bootstrap, contrasts, ranks
from saliency_bench.utils.files import read_json, write_json

FORMAT = 2
NAN = float("nan")
LEGEND = "95 % bootstrap intervals in brackets; #: rank, 1 + number of significantly better explainers (paired test)"


@dataclass(frozen=True)
class RunFacts:
    """What a summary says of a run besides its cells and scores.

    samples: of the split; used: those the run covers. groups: {"name", "identity"} of groups of classes. provenance:
    library versions and hardware.
    """

    folder: Path
    dataset: str
    split: str
    fingerprint: str
    samples: int
    used: int
    classes: int
    model: str
    revision: str | None
    digest: str
    geometry: str
    target: str
    groups: dict[str, str] | None
    precision: str
    seed: int
    batch_size: int
    command: str
    provenance: dict

    @property
    def chunks(self) -> int:
        return -(-self.used // self.batch_size)


@dataclass(frozen=True)
class Outcome:
    """The records of one cell: `scores` in the order of the samples, NaN where there is none; the same of each part of
    a score; how often each reason left a sample out; and how often each mark stands beside a score."""

    scores: np.ndarray
    parts: dict[str, np.ndarray]
    left_out: Counter[str]
    marks: Counter[str]


def summarise(facts: RunFacts) -> dict:
    """Write summary.json from a run's records and predictions, and return its JSON."""
    plan = read_manifest(facts.folder).cells
    predictions = pq.read_table(facts.folder / "predictions.parquet", columns=["correct", "mask_share", "left_out"])
    outcomes = _outcomes(facts.folder / "records.parquet")
    keys = [key for key in plan.values() if key.cell_id in outcomes]
    passes, halved = _passes(facts.folder, list(plan), facts.chunks)
    comparisons, ranked = _comparisons(keys, outcomes, facts.seed)
    cells = [
        _result(key, outcomes[key.cell_id], passes[key.cell_id], ranked.get(key.cell_id), facts.seed) for key in keys
    ]
    summary = {
        "format": FORMAT,
        "dataset": {
            "id": facts.dataset,
            "split": facts.split,
            "fingerprint": facts.fingerprint,
            "samples": facts.samples,
            "used": facts.used,
            "classes": facts.classes,
        },
        "model": {
            "id": facts.model,
            "revision": facts.revision,
            "digest": facts.digest,
            "geometry": facts.geometry,
            "accuracy": _accuracy(predictions, facts.seed).model_dump(),
        },
        "masks": _masks(predictions),
        "target": facts.target,
        "groups": facts.groups,
        "precision": facts.precision,
        "seed": facts.seed,
        "batch_size": facts.batch_size,
        "cells": as_json(cells),
        "comparisons": comparisons,
        "faults": faults_of(cells),
        "halved_chunks": halved,
        "command": facts.command,
        "provenance": facts.provenance,
    }
    write_json(facts.folder / "summary.json", summary)
    return read_json(facts.folder / "summary.json")  # where what is not known is None


def _outcomes(path: Path) -> dict[str, Outcome]:
    scores: dict[str, array] = defaultdict(lambda: array("d"))
    parts: dict[str, dict[str, array]] = defaultdict(lambda: defaultdict(lambda: array("d")))
    left_out: dict[str, Counter[str]] = defaultdict(Counter)
    marks: dict[str, Counter[str]] = defaultdict(Counter)
    for batch in pq.ParquetFile(path).iter_batches(columns=["cell_id", "part", "value", "reason"]):
        for cell_id, part, value, reason in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            series = scores[cell_id] if part is None else parts[cell_id][part]
            series.append(NAN if value is None else value)
            if part is not None:
                continue
            if value is None:
                left_out[cell_id][reason] += 1
            elif reason is not None:
                marks[cell_id].update(reason.split(MARKS))
    return {
        cell_id: Outcome(
            np.array(values, dtype=float),
            {name: np.array(part, dtype=float) for name, part in parts[cell_id].items()},
            left_out[cell_id],
            marks[cell_id],
        )
        for cell_id, values in scores.items()
    }


def faults_of(cells: Sequence[CellResult]) -> dict[str, int]:
    """{what went wrong: how many records have no score because of it}"""
    total: Counter[str] = sum((Counter(cell.left_out) for cell in cells), Counter())
    return {reason: count for reason, count in sorted(total.items()) if not is_expected(reason)}


def _passes(folder: Path, cell_ids: list[str], chunks: int) -> tuple[dict[str, ForwardPasses], int]:
    """({cell id: forward passes}, how often a batch was halved to fit into memory), over whole chunks."""
    explain, metric = Counter[str](), Counter[str]()
    halved = 0
    for path in (folder / "chunks").glob("*/*.parquet"):
        if int(path.name[:6]) < chunks:
            notes = records.notes_of(path)
            halved += notes["halved"]
            for cell_id in notes["cells"]:
                explain[cell_id] += notes["passes"].get("explain", 0)
                metric[cell_id] += notes["passes"].get(cell_id, 0)
    return {cell_id: ForwardPasses(explain=explain[cell_id], metric=metric[cell_id]) for cell_id in cell_ids}, halved


def _comparisons(
    keys: list[CellKey], outcomes: dict[str, Outcome], seed: int
) -> tuple[list[dict], dict[str, int | None]]:
    """Of each metric: its explainers in pairs on the samples that both have, and {cell id: rank}."""
    by_metric: dict[tuple[str, int], list[CellKey]] = {}
    for key in keys:
        by_metric.setdefault(key.metric_id, []).append(key)
    comparisons: list[dict] = []
    ranked: dict[str, int | None] = {}
    for (text, _), rivals in by_metric.items():
        if len(rivals) < 2:
            continue
        columns = np.stack([outcomes[key.cell_id].scores for key in rivals], axis=1)
        pairs = contrasts(columns, seed)
        ids = [key.cell_id for key in rivals]
        ranked |= zip(ids, ranks(columns, pairs, rivals[0].higher_is_better), strict=True)
        for pair in pairs:
            both = rivals[pair.first], rivals[pair.second]
            names = {"explainers": [key.explainer_text for key in both], "cells": [key.cell_id for key in both]}
            numbers = {name: value for name, value in asdict(pair).items() if name not in ("first", "second")}
            comparisons.append({"metric": text} | names | numbers)
    return comparisons, ranked


def _result(key: CellKey, outcome: Outcome, passes: ForwardPasses, rank: int | None, seed: int) -> CellResult:
    return CellResult(
        **dict(key),
        **dict(_interval(outcome.scores, seed)),
        rank=rank,
        parts={name: PartResult(**dict(_interval(values, seed))) for name, values in outcome.parts.items()},
        left_out=dict(sorted(outcome.left_out.items())),
        flat=outcome.marks[FLAT],
        marked={reason: count for reason, count in sorted(outcome.marks.items()) if reason != FLAT},
        forward_passes=passes,
    )


def _interval(values: np.ndarray, seed: int) -> Interval:
    """Of the values that are not NaN."""
    values = values[~np.isnan(values)]
    value, low, high = (None if np.isnan(number) else number for number in bootstrap(values, seed=seed))
    return Interval(value=value, low=low, high=high, n=len(values))


def _accuracy(predictions: pa.Table, seed: int) -> Interval:
    return _interval(np.array(predictions["correct"].drop_null().to_pylist(), dtype=float), seed)


def _masks(predictions: pa.Table) -> dict:
    shares = [share for share in predictions["mask_share"].to_pylist() if share is not None]
    left_out = Counter(reason for reason in predictions["left_out"].to_pylist() if reason is not None)
    return {
        "usable": len(shares),
        "mean_share": float(np.mean(shares)) if shares else None,
        "left_out": dict(sorted(left_out.items())),
    }


def table(cells: Sequence[CellResult], used: int) -> str:
    """The cells as text: a row per explainer, a column per metric, value [low, high] #rank; n where it is not `used`.

    used: samples that the run covers.
    """
    metrics = {cell.metric_id: f"{cell.metric_text} {'↑' if cell.higher_is_better else '↓'}" for cell in cells}
    explainers = {cell.explainer_id: cell.explainer_text for cell in cells}
    texts = Counter(explainers.values())  # two functions may have one name
    versions = {cell.explainer_id: f" ({str(cell.explainer_version)[:6]})" for cell in cells}
    by_ids = {(cell.explainer_id, cell.metric_id): cell for cell in cells}
    header = ["explainer", *metrics.values()]
    names = {key: text + (versions[key] if texts[text] > 1 else "") for key, text in explainers.items()}
    body = [[name, *(_score(by_ids.get((key, metric)), used) for metric in metrics)] for key, name in names.items()]
    widths = [max(map(len, column)) for column in zip(header, *body, strict=True)]
    lines = ["  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)) for row in [header, *body]]
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(line.rstrip() for line in lines)


def _score(cell: CellResult | None, used: int) -> str:
    if cell is None or cell.value is None:
        return "-"
    interval = f" [{cell.low:.3f}, {cell.high:.3f}]" if cell.ends else ""
    rank = f" #{cell.rank}" if cell.rank else ""
    fewer = "" if cell.n == used else f" n={cell.n}"
    return f"{cell.value:.3f}{interval}{rank}{fewer}"
