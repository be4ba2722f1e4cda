"""Summary of a run: scores with intervals, reasons for omitted samples, library versions and hardware."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from saliency_bench.errors import UserError, one_line, without_controls
from saliency_bench.read import WRITTEN, records
from saliency_bench.read.accuracy import COLUMNS, quality
from saliency_bench.read.cell import (
    RARE,
    CellKey,
    CellResult,
    ForwardPasses,
    Interval,
    PartResult,
    as_json,
    best,
    by_metric,
    explainer_names,
    metric_names,
    read_cells,
)
from saliency_bench.read.identity import Identity
from saliency_bench.read.manifest import Manifest, read_manifest
from saliency_bench.read.parts import RunStore
from saliency_bench.read.statistics.clusters import cluster_codes
from saliency_bench.read.statistics.intervals import intervals, is_bounded
from saliency_bench.read.statistics.ranking import TEST, Standing, aggregated, compare
from saliency_bench.read.statistics.reliability import reliabilities
from saliency_bench.read.statistics.trainings import areas_by_training, count_trainings, crossed
from saliency_bench.score_notes import CHANGES_NETWORK, DEPENDS_ON_BATCH, FLAT, FLAT_UNRANKED, is_expected
from saliency_bench.spec import PREDICTED_BY
from saliency_bench.utils.files import read_json, write_json
from saliency_bench.utils.messages import counted

FORMAT = 3
TARGETS = {
    "label": "the labelled class",
    "predicted": "the predicted class",
    "contrast:second": "the predicted class and not the runner-up",
}
SHOWN = 60  # maximum number of characters of a reason in a table
RARE_MEANS = (
    "the interval is wider because the samples do not rule out that a few per cent of all scores are very different"
)


@dataclass(frozen=True)
class Outcome:
    """Scores, parts and remarks of one cell, read from the records.

    Attributes:
        scores: Scores in the order of the samples, NaN if missing.
        parts: {name: values of the part in the order of the samples, NaN if missing}.
        left_out: {reason: number of samples omitted for this reason}.
        marks: {remark: number of scores with this remark}, including samples that have parts but no overall score.
    """

    scores: np.ndarray
    parts: dict[str, np.ndarray]
    left_out: Counter[str]
    marks: Counter[str]

    def count(self, aggregate: bool) -> int:
        """Return the number of samples that have a score or, for an aggregate, a part."""
        counted = np.isfinite(self.columns).any(axis=1) if aggregate and self.parts else np.isfinite(self.scores)
        return int(counted.sum())

    @property
    def columns(self) -> np.ndarray:
        """Return the parts (n, P)."""
        return np.stack(list(self.parts.values()), axis=1)


@dataclass(frozen=True)
class Numbers:
    """Score of a cell with its interval, and the results of its parts."""

    score: Interval
    parts: dict[str, PartResult]


def summarise(folder: Path, facts: dict[str, Any]) -> dict:
    """Summarise the records of a run and write summary.json.

    Args:
        folder: Folder of the run.
        facts: Entries of summary.json that are not computed from records (`compute.finish.run_facts`).

    Returns:
        Content of summary.json, with None for unknown numbers.
    """
    manifest, seed = read_manifest(folder), facts["seed"]
    identity, dataset, other = manifest.identity, facts["dataset"], facts["other_model"]
    predictions = _predictions(folder, "predictions", identity)
    explained, outcomes = _outcomes(folder / "records.parquet")
    # The records of a cell are in the order of the explained predictions, so these codes match the scores.
    clustered = predictions.filter(pc.is_in(predictions["image_id"], pa.array(explained, pa.string())))
    codes = cluster_codes(clustered["image_id"].to_pylist(), clustered["group"].to_pylist())
    keys = [key for key in manifest.cells.values() if key.cell_id in outcomes]
    passes, halved, of_maps, sizes = _passes(folder, manifest, dataset["used"])
    parts = {key.cell_id: outcomes[key.cell_id].columns for key in keys if key.aggregate}
    numbers = {
        name: score
        for cells_of_metric in by_metric(keys)
        for name, score in numbers_of(cells_of_metric, outcomes, codes, seed)
    }
    scores = {cell_id: outcome.scores for cell_id, outcome in outcomes.items()}
    contrasts, standings = compare(keys, scores, codes, seed, parts)
    cells = [
        result_of(key, outcomes[key.cell_id], numbers[key.cell_id], passes[key.cell_id], standings[key.cell_id])
        for key in keys
    ]
    if other is not None:
        assert manifest.other is not None
        of_other = _predictions(folder, "other_predictions", manifest.other.identity)
        other = other | quality(of_other, manifest.other.identity.labels, other["activation"], seed)
    summary = {
        "format": FORMAT,
        **facts,
        **({"batch_sizes": sorted(sizes)} if sizes - {facts["batch_size"]} else {}),
        "dataset": dataset | {"chosen_by": _chosen_by(folder / "predictions.parquet", facts["model"]["digest"])},
        "model": facts["model"] | quality(predictions, identity.labels, identity.activation, seed),
        "other_model": other,
        "masks": _masks(predictions),
        "cells": as_json(cells),
        "comparisons": as_json(contrasts),
        "rank_test": TEST,
        "reliability": {key: about.model_dump(mode="json") for key, about in reliabilities(folder).items()},
        "maps": of_maps,
        "faults": faults_of(cells),
        "warnings": warnings(cells),
        "halved_chunks": halved,
        "command": manifest.commands(keys),
    }
    (folder / WRITTEN).unlink(missing_ok=True)  # its hashes belong to the previous summary
    write_json(folder / "summary.json", summary)
    return read_json(folder / "summary.json")  # in the file, unknown numbers are null


def _predictions(folder: Path, name: str, identity: Identity) -> pa.Table:
    """Return the columns of a predictions file that `quality` needs."""
    # Logits are most of the file, and a softmax does not need them.
    columns = [name for name in COLUMNS if name != "logits" or identity.activation != "softmax"]
    return pq.read_table(folder / f"{name}.parquet", columns=columns)


def _chosen_by(path: Path, digest: str) -> str | None:
    """Return the classifier that chose the dataset's images; None if there is none or if it is the run's own."""
    columns = ["chosen_by", "chosen_by_digest"]
    if not set(columns) <= set(pq.read_schema(path).names):
        return None
    rows = pq.read_table(path, columns=columns).to_pylist()
    others = sorted({str(row["chosen_by"]) for row in rows if row["chosen_by_digest"] not in (None, digest)})
    return ", ".join(others) or None


def _outcomes(path: Path) -> tuple[list[str], dict[str, Outcome]]:
    """Return (image ids in the order of every cell's scores, {cell id: outcome})."""
    ids: list[pa.Array] = []
    values: dict[str, dict[str | None, list[np.ndarray]]] = {}
    left_out: dict[str, Counter[str]] = defaultdict(Counter)
    marks: dict[str, Counter[str]] = defaultdict(Counter)
    for cell_id, rows in records.by_cell(path, ["image_id", "part", "value", "reason"]):
        numbers, parts_of_cell = records.numbers(rows), values.setdefault(cell_id, {})
        for part, rows_of_part in records.places_by_part(rows):
            parts_of_cell.setdefault(part, []).append(numbers[rows_of_part])
        scores = rows.filter(pc.is_null(rows.column("part")))
        if cell_id == next(iter(values)):
            ids.append(scores.column("image_id").cast(pa.string()))
        lost, marked = records.counted_reasons(scores)
        left_out[cell_id] += lost
        marks[cell_id] += marked
    outcomes = {}
    for cell_id in list(values):
        whole = {part: np.concatenate(pieces) for part, pieces in values.pop(cell_id).items()}
        scores, parts = (
            whole.pop(None),
            {part: parts_of_cell for part, parts_of_cell in whole.items() if part is not None},
        )
        outcomes[cell_id] = Outcome(scores, parts, left_out[cell_id], marks[cell_id])
    return pa.chunked_array(ids, pa.string()).to_pylist(), outcomes


def faults_of(cells: Sequence[CellResult]) -> dict[str, int]:
    """Return {reason: number of records without a score} for reasons that are failures."""
    total: Counter[str] = sum((Counter(cell.left_out) for cell in cells), Counter())
    return {reason: count for reason, count in sorted(total.items()) if not is_expected(reason)}


def _passes(
    folder: Path, manifest: Manifest, used: int
) -> tuple[dict[str, ForwardPasses], int, dict[str, dict], set[int]]:
    """Return statistics from the notes of part files, summed over whole batches.

    Returns:
        ({cell id: forward passes}, number of times a batch was halved to fit in memory, {explainer id: {"cells":
        (height, width) of the maps before upsampling or None, "negative": whether a map has negative values}}, batch
        sizes with which the scores were computed).
    """
    explain, metric = Counter[str](), Counter[str]()
    halved = 0
    of_maps: dict[str, dict] = {}
    sizes: set[int] = set()
    shown = {key.explainer_id for key in manifest.cells.values()}
    parts = RunStore(folder, manifest.identity).scores.parts()
    for entry in (entry for part in parts for entry in part.entries if entry.group in shown):
        # An earlier call of `run` with a larger limit may have computed more batches than this call covers.
        count = sum(start < used for start in entry.starts)
        halved += count * entry.about["halved"]
        sizes |= {entry.about["batch_size"]} if count else set()
        if count and "negative" in entry.about:  # missing if an explainer returned no map
            known = of_maps.setdefault(entry.group, {"cells": None, "negative": False})
            known["cells"] = known["cells"] or entry.about["cells"]
            known["negative"] |= entry.about["negative"]
        for cell_id in entry.keys:
            explain[cell_id] += count * entry.about["passes"].get("explain", 0)
            metric[cell_id] += count * entry.about["passes"].get(cell_id, 0)
    passes = {cell: ForwardPasses(explain=explain[cell], metric=metric[cell]) for cell in manifest.cells}
    return passes, halved, dict(sorted(of_maps.items())), sizes


def numbers_of(
    keys: Sequence[CellKey], outcomes: dict[str, Outcome], codes: np.ndarray, seed: int
) -> Iterator[tuple[str, Numbers]]:
    """Yield (cell id, score and parts with intervals) for each cell of one metric.

    Parts need a lot of memory, so they are removed from `outcomes` as soon as they are summarised.
    """
    columns = [outcomes[key.cell_id].scores for key in keys]
    parts = [(key.cell_id, name) for key in keys for name in outcomes[key.cell_id].parts]
    columns += [outcomes[cell_id].parts[name] for cell_id, name in parts]
    estimates = intervals(np.stack(columns, axis=1), codes, keys[0].limits, seed)
    of_parts = dict(zip(parts, estimates[len(keys) :], strict=True))
    for key, of_mean in zip(keys, estimates, strict=False):
        areas = areas_by_training(outcomes[key.cell_id].parts)
        score = of_mean if areas is None else crossed(areas, codes, key.limits)
        if key.aggregate:
            score = aggregated(key, outcomes[key.cell_id].columns, codes, seed)
        part_results = {
            name: PartResult.from_estimate(of_parts[key.cell_id, name]) for name in outcomes[key.cell_id].parts
        }
        outcomes[key.cell_id].parts.clear()  # frees most of the memory
        yield key.cell_id, Numbers(Interval.from_estimate(score), part_results)


def result_of(
    key: CellKey, outcome: Outcome, numbers: Numbers, passes: ForwardPasses, standing: Standing
) -> CellResult:
    """Return the result of a cell."""
    unbounded = not is_bounded(key.limits) and numbers.score.n > 0 and not key.aggregate
    return CellResult(
        **dict(key),
        **dict(numbers.score),
        **standing.as_dict(),
        median=float(np.nanmedian(outcome.scores)) if unbounded else None,
        parts=numbers.parts,
        left_out=dict(sorted(outcome.left_out.items())),
        flat=outcome.marks[FLAT],
        marked={reason: count for reason, count in sorted(outcome.marks.items()) if reason != FLAT},
        forward_passes=passes,
        trainings=count_trainings(numbers.parts),
    )


def _masks(predictions: pa.Table) -> dict:
    """Return the `masks` entry of a summary."""
    shares = [share for share in predictions["mask_share"].to_pylist() if share is not None]
    left_out = Counter(reason for reason in predictions["left_out"].to_pylist() if reason is not None)
    return {
        "usable": len(shares),
        "mean_share": float(np.mean(shares)) if shares else None,
        "left_out": dict(sorted(left_out.items())),
    }


def summarised_names(folder: Path) -> dict[str, str]:
    """Return {cell id: "EXPLAINER by METRIC"} from the summary in a folder; {} if the summary cannot be read."""
    try:
        cells = read_cells(read_json(folder / "summary.json")["cells"])
    except (UserError, OSError, LookupError, TypeError):
        return {}
    return {cell.cell_id: f"{cell.explainer_text} by {cell.metric_text}" for cell in cells}


def covered(summary: dict) -> int:
    """Return the number of samples that the cells of a summary cover."""
    only = summary.get("only")
    return only["samples"] if only else summary["dataset"]["used"]


def table(cells: Sequence[CellResult], used: int) -> str:
    """Return a table of cells as text, with one row per explainer and one column per metric.

    Entries have the form "value [low, high] #ranks, notes". They include the number n of scored samples if it differs
    from `used`, and the number C of clusters if samples depend on each other. A cell without a value shows a short
    reason. Lines below the table list explainers with failures or flat maps. Rows are sorted by the mean of the first
    metric, with baselines last.
    """
    lines = [aligned(table_rows(cells, used))]
    if below := lines_below(cells):
        lines += ["", *below]
    return "\n".join(lines)


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Return a table as text, with a rule below its first row."""
    rows = [[without_controls(text) for text in row] for row in rows]  # class names may come from unknown authors
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)) for row in rows]
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(line.rstrip() for line in lines)


def table_rows(cells: Sequence[CellResult], used: int) -> list[list[str]]:
    """Return the header and the rows of `table`."""
    arrows = {cell.metric_id: "↑" if cell.higher_is_better else "↓" for cell in cells}
    metrics = {key: f"{name} {arrows[key]}" for key, name in metric_names(cells).items()}
    names = explainer_names(cells)
    by_ids = {(cell.explainer_id, cell.metric_id): cell for cell in cells}
    marked = best(cells)
    rows = (
        [names[key], *(_score(by_ids.get((key, metric)), used, marked) for metric in metrics)]
        for key in in_order(cells)
    )
    return [["explainer", *metrics.values()], *rows]


def legend(cells: Sequence[CellResult]) -> str:
    """Return an explanation of the symbols in the table of these cells; "" if there are none."""
    parts = ["95 % intervals in brackets"] * any(cell.ends for cell in cells)
    parts += [f"{RARE}: {RARE_MEANS}"] * any(cell.rare for cell in cells)
    parts += ["#: possible ranks according to a paired test"] * any(cell.rank for cell in cells)
    parts += notes(cells)
    return "; ".join(parts)


def in_short(summary: dict, cells: Sequence[CellResult]) -> str:
    """Return the line below a run's table: the samples, the accuracy of the classifier, and a legend."""
    only, dataset = summary["only"], summary["dataset"]
    chosen = f", of which {only['samples']} are explained (--only {' '.join(only['conditions'])})" if only else ""
    of_all = f" of {dataset['samples']}" if dataset["used"] < dataset["samples"] else ""
    other = summary["other_model"]
    of_other = f"other model ({other['label_column']}) {_accuracy(other)}" if other else ""
    chooser = f"images chosen by another model ({dataset['chosen_by']})" if dataset.get("chosen_by") else ""
    samples = f"{dataset['used']}{of_all} samples{chosen}"
    facts = [samples, chooser, _accuracy(summary["model"]), of_other, legend(cells)]
    return ", ".join(filter(None, facts))


def misfits(summary: dict) -> list[str]:
    """Return a line for each explainer that was left out because it is incompatible with the network."""
    return [f"left out: {name} ({_without_fix(reason)})" for name, reason in summary.get("misfits", {}).items()]


def _without_fix(reason: str) -> str:
    """Return a reason without the fix, which follows a semicolon and may be in parentheses."""
    text = reason.partition(";")[0]
    return text.rpartition(" (")[0] if text.count("(") > text.count(")") else text


def maps_line(summary: dict, cells: Sequence[CellResult]) -> str:
    """Return a line about a run's maps: what they explain, their original size, and which have negative values.

    A map that is upsampled from 7 x 7 cells locates evidence less precisely than a map that is computed pixel by pixel.
    A negative value is evidence against the target.
    """
    names, of_maps = explainer_names(cells), summary.get("maps", {})
    by_size: dict[str, list[str]] = {}
    for key, about in of_maps.items():
        if key in names and about["cells"]:
            by_size.setdefault(" x ".join(map(str, about["cells"])), []).append(names[key])
    parts = [f"Maps explain {explained(summary['target'])}"]
    parts += [f"upsampled from {size}: {', '.join(sorted(listed))}" for size, listed in sorted(by_size.items())]
    negative = sorted(names[key] for key, about in of_maps.items() if key in names and about["negative"])
    return "; ".join(parts + [f"with negative values: {', '.join(negative)}"] * bool(negative))


def explained(rule: str) -> str:
    """Describe what maps explain under a target rule."""
    if rule.startswith(PREDICTED_BY):
        return f"the class that {rule.removeprefix(PREDICTED_BY)} predicts"
    return TARGETS.get(rule, f"the target that {rule} specifies for each sample")


def _accuracy(model: dict) -> str:
    value, five = model["accuracy"]["value"], model["top5"]
    if value is None:
        return f"accuracy unknown ({model['no_accuracy']})" if model["no_accuracy"] else "accuracy unknown"
    assumed = ", softmax assumed" if model["activation_assumed"] else ""
    assumed += ", classes in the order of the dataset" if model.get("classes_by_position") else ""
    top5 = f", top-5 {five['value']:.1%}" if five else ""
    return f"{model['accuracy_kind']} {value:.1%}{top5}{assumed}"


def notes(cells: Sequence[CellResult]) -> list[str]:
    """Return a line for each remark on the values of metrics. It names all metrics with this remark."""
    named: dict[str, list[str]] = {}
    for metric, name in metric_names(cells).items():
        note = next(cell.note for cell in cells if cell.metric_id == metric)
        named.setdefault(note, []).append(name)
    return [f"{', '.join(names)}: {note}" for note, names in named.items() if note]


def warnings(cells: Sequence[CellResult]) -> list[str]:
    """Return a sentence for each explainer that changes the network or depends on its batch."""
    lines = []
    for key, name in explainer_names(cells).items():
        of_explainer = [cell for cell in cells if cell.explainer_id == key]
        if dropped := sum(cell.left_out.get(CHANGES_NETWORK, 0) for cell in of_explainer):
            lines.append(
                f"{name} changes the network: the network's output differed afterwards, so {dropped:,} scores of "
                f"{name} are ignored."
            )
        if marked := max(cell.marked.get(DEPENDS_ON_BATCH, 0) for cell in of_explainer):
            lines.append(
                f"{name} depends on its batch: the map of an image changes with the other images in the batch "
                f"({marked:,} samples), so the scores are valid only for this batch size and order."
            )
    return lines


def fault_lines(cells: Sequence[CellResult]) -> list[str]:
    """Return a line for each explainer with failures, which names its most frequent failure."""
    lines = []
    for key, name in explainer_names(cells).items():
        faults = Counter(faults_of([cell for cell in cells if cell.explainer_id == key]))
        for reason, _ in faults.most_common(1):
            total = faults.total()
            have = "has" if total == 1 else "have"
            lines.append(f"{name}: {counted(total, 'record')} {have} no score: {one_line(reason)}")
    return lines


def lines_below(cells: Sequence[CellResult]) -> list[str]:
    """Return the lines about failures and flat maps that are printed below a table."""
    flat = [f"{name} {counted(count, 'map')}" for name, count in flat_maps(cells).items()]
    return fault_lines(cells) + [f"flat maps (one value everywhere): {', '.join(flat)}"] * bool(flat)


def flat_maps(cells: Sequence[CellResult]) -> dict[str, int]:
    """Return {explainer: number of constant maps} for explainers with constant maps."""
    counts: Counter[str] = Counter()
    names = explainer_names(cells)
    for cell in cells:
        name = names[cell.explainer_id]
        counts[name] = max(counts[name], cell.flat + cell.left_out.get(FLAT_UNRANKED, 0))
    return {name: count for name, count in counts.items() if count}


def in_order(cells: Sequence[CellResult]) -> list[str]:
    """Return the explainers' ids, sorted by mean score on the first metric: best first, baselines last."""
    sign = -1 if cells[0].higher_is_better else 1
    first = [cell for cell in cells if cell.metric_id == cells[0].metric_id]
    means = {cell.explainer_id: sign * cell.value for cell in first if cell.value is not None}
    by_mean = sorted(cells, key=lambda cell: (cell.baseline, means.get(cell.explainer_id, np.inf)))
    return list(dict.fromkeys(cell.explainer_id for cell in by_mean))


def _score(cell: CellResult | None, used: int, marked: Set[str]) -> str:
    if cell is None:
        return "-"
    if cell.without:
        return f"- ({one_line(cell.without, SHOWN)})"
    text = f"{cell.value:.3f}"
    if cell.ends:
        text += f" [{cell.low:.3f}, {cell.high:.3f}]"
    if cell.median is not None:
        text += f" median {cell.median:.3f}"
    if cell.rank:
        text += f" #{cell.ranks}"
    notes = ["few samples"] * cell.few + ["approximate"] * cell.approximate + [RARE] * cell.rare
    notes += [f"few training runs ({cell.trainings})"] * cell.few_trainings
    notes += [cell.best_mark] * (cell.cell_id in marked)
    fewer = [f"n={cell.n}"] * (cell.n != used) + [f"C={cell.clusters}"] * (cell.clusters < cell.n)
    fewer += [f"({cell.independent:.0f} effective)"] * (round(cell.independent) < cell.clusters)
    return " ".join([text, *notes, *fewer])
