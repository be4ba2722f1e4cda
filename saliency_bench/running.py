"""A run: every explainer and metric over a dataset, as a folder of cells.

    OUT/run.json           what the run is, and its cells
    OUT/predictions/       one part per chunk            -> predictions.parquet
    OUT/parts/EXPLAINER/   one part per chunk            -> records.parquet
    OUT/thumbnails/        small maps for the report     -> examples.npz
    OUT/summary.json  timings.json  report.html

The unit of work is a chunk: `batch_size` consecutive samples, computed whole by one explainer and scored by all its
metrics. A part is written under a temporary name and renamed, so that what is there is whole; a run that is started
again computes what is missing. Adding an explainer or a metric adds cells and redoes none.
"""

import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from accelerate import Accelerator
from tqdm import tqdm

from saliency_bench import options, records
from saliency_bench.classifier import Classifier, load_classifier
from saliency_bench.data import class_names, fingerprint, load_dataset
from saliency_bench.errors import UserError
from saliency_bench.examples import save_thumbnails, write_examples
from saliency_bench.explainer import Explainer, NotFinite, as_explainer
from saliency_bench.files import write_json
from saliency_bench.labels import Members, match
from saliency_bench.maps import is_flat
from saliency_bench.metric import Metric, load_metric
from saliency_bench.perturbation import Curves
from saliency_bench.seeds import seed_of
from saliency_bench.summary import read_json, summarise
from saliency_bench.target_rules import Sides, TargetRule, load_rule, stack
from saliency_bench.types import Batch, Maps

PRECISION = "fp32"


@dataclass(frozen=True)
class Cell:
    """One explainer scored by one metric: a number of the leaderboard."""

    id: str
    explainer: Explainer
    metric: Metric

    def as_dict(self) -> dict:
        return {
            "cell_id": self.id,
            "parts": records.identity(self.explainer.identity),
            "explainer": self.explainer.name,
            "explainer_options": dict(self.explainer.options),
            "explainer_text": str(self.explainer),
            "explainer_version": self.explainer.version,
            "metric": self.metric.name,
            "metric_options": dict(self.metric.options),
            "metric_text": str(self.metric),
            "metric_version": self.metric.version,
            "higher_is_better": self.metric.higher_is_better,
        }


@dataclass(frozen=True)
class Run:
    """A finished run: its folder and its summary; `records()` gives the rows."""

    folder: Path
    summary: dict

    @property
    def report(self) -> Path:
        return self.folder / "report.html"

    def records(self) -> datasets.Dataset:
        return datasets.Dataset.from_parquet(str(self.folder / "records.parquet"), keep_in_memory=True)

    def __str__(self) -> str:
        from saliency_bench.summary import table

        return table(self.summary)


@dataclass
class Work:
    """What a run works on, loaded once."""

    classifier: Classifier
    rows: datasets.Dataset
    dataset: str
    split: str
    names: list[str]
    members: Members
    rule: TargetRule
    seed: int
    batch_size: int
    out: Path

    @cached_property
    def identity(self) -> dict:
        """Everything of a cell but its explainer and metric."""
        return {
            "fingerprint": fingerprint(self.rows),
            "split": self.split,
            "classifier": self.classifier.digest,
            "geometry": str(self.classifier.geometry),
            "target": self.rule.identity,
            "labels": self.members,
            "precision": PRECISION,
            "seed": self.seed,
        }

    def cell(self, explainer: Explainer, metric: Metric) -> Cell:
        return Cell(records.identity(self.identity, explainer.identity, metric.identity), explainer, metric)

    def chunk(self, number: int) -> Batch:
        start = number * self.batch_size
        undecoded = self.rows[start : start + self.batch_size]
        return self.classifier.prepare(
            {key: undecoded[key] for key in ("image", "mask", "label", "image_id") if key in undecoded}
        )


def run(
    *,
    dataset: str,
    model,
    explainers: Sequence[str | Explainer | Callable[..., Maps]],
    metrics: Sequence[str | Metric],
    out: str | Path,
    split: str = "test",
    target: str = "label",
    label_map: dict | str | Path | None = None,
    limit: int | None = None,
    batch_size: int = 16,
    seed: int = 0,
    device: str | None = None,
    progress: bool = True,
) -> Run:
    """Score every explainer by every metric and write records, summary and report to the folder `out`.

    dataset: a name or folder (`load_dataset`). model: what `load_classifier` takes. explainers, metrics: names, with
    options as "rise:masks=1000", or objects; an explainer may be any function (classifier, images, target) -> maps.
    target: "label", "predicted", "contrast:second" or a CSV file. limit: the first N samples. batch_size: samples per
    chunk, the unit that is computed whole.

    Errors: UserError for anything the caller can mend; `out` then holds nothing new but whole parts.
    """
    started = time.time()
    chosen = [as_explainer(explainer) for explainer in _listed(explainers)]
    scorers = [metric if isinstance(metric, Metric) else load_metric(metric) for metric in _listed(metrics)]
    if batch_size < 1 or (limit is not None and limit < 1):
        raise UserError("--batch-size and --limit must be at least 1")
    accelerator = Accelerator(cpu=device == "cpu" or not torch.cuda.is_available())
    work = _load(dataset, model, split, target, label_map, batch_size, seed, accelerator.device, Path(out))
    explainers_bound = [_with_seed(explainer, seed) for explainer in chosen]
    cells = [work.cell(explainer, metric) for explainer in explainers_bound for metric in scorers]
    samples = min(limit or len(work.rows), len(work.rows))
    chunks = range(-(-samples // batch_size))
    mine = chunks[accelerator.process_index :: accelerator.num_processes]

    if accelerator.is_main_process:
        _claim(work, cells)
    accelerator.wait_for_everyone()
    seconds: dict[str, float] = {}
    shown = progress and accelerator.is_local_main_process
    for number in tqdm(mine, desc="predict", unit="chunk", disable=not shown):
        _predict(work, number)
    with tqdm(total=len(mine) * len(explainers_bound), desc="explain", unit="map batch", disable=not shown) as bar:
        for number in mine:
            _explain(work, number, cells, seconds, bar)
    accelerator.wait_for_everyone()
    if not accelerator.is_main_process:
        return Run(work.out, {})

    _merge(work, samples)
    command = _command(dataset, model, split, target, label_map, limit, batch_size, seed, out, cells)
    summary = summarise(work, samples, command)
    write_json(work.out / "timings.json", {"started": started, "seconds": time.time() - started, "explainers": seconds})
    write_examples(work, summary)
    from saliency_bench.reporting import report

    report([work.out])
    return Run(work.out, summary)


def _load(dataset, model, split, target, label_map, batch_size, seed, device, out: Path) -> Work:
    rows = load_dataset(dataset, split=split)
    if len(rows) == 0:
        raise UserError(f"the split {split} of {dataset} is empty")
    names = class_names(rows)
    classifier = load_classifier(model, device=device)
    undecoded = rows.cast_column("image", datasets.Image(decode=False))
    if "mask" in rows.column_names:
        undecoded = undecoded.cast_column("mask", datasets.Image(decode=False))
    probe = classifier.prepare([undecoded[0]]).images
    with torch.no_grad():
        classes = classifier.eval()(probe).shape[1]
    members = match(names, classifier.labels, classes, label_map)
    rule = load_rule(target, classifier.labels, classes)
    return Work(classifier, undecoded, dataset, split, names, members, rule, seed, batch_size, out)


def _with_seed(explainer: Explainer, seed: int) -> Explainer:
    """The run's seed is the seed of what an explainer draws once for all samples (RISE's masks), unless one was chosen."""
    given = dict(explainer.options)
    if "seed" not in given or given["seed"] != options.defaults(explainer.function)["seed"]:
        return explainer
    return replace(explainer, options=tuple(sorted((given | {"seed": seed}).items())))


def _claim(work: Work, cells: list[Cell]) -> None:
    """Write run.json, or add cells to it. Errors: UserError where the folder holds a run of something else."""
    path = work.out / "run.json"
    settings = work.identity | {"batch_size": work.batch_size}
    known: dict = {}
    if path.exists():
        before = read_json(path)
        if differing := [key for key in settings if before.get(key) != settings[key]]:
            raise UserError(f"{work.out} holds a run with another {differing[0]}; choose another --out")
        known = before["cells"]
    elif work.out.exists() and (not work.out.is_dir() or any(work.out.iterdir())):
        raise UserError(f"{work.out} exists and is not a run of saliency-bench; choose another --out")
    try:
        write_json(path, settings | {"cells": known | {cell.id: cell.as_dict() for cell in cells}})
    except OSError as error:
        raise UserError(f"cannot write to {work.out}: {error.strerror}; choose another --out") from error


def _predict(work: Work, number: int) -> None:
    path = _prediction_part(work, number)
    if path.exists():
        return
    batch = work.chunk(number)
    with torch.no_grad():
        logits = work.classifier(batch.images).float().cpu()
    confidence, prediction = logits.double().softmax(dim=1).max(dim=1)
    rows = []
    for index, image_id in enumerate(batch.ids):
        label = int(batch.labels[index])
        reason = batch.left_out[index]
        rows.append(
            {
                "image_id": image_id,
                "label": label,
                "prediction": int(prediction[index]),
                "confidence": float(confidence[index]),
                "correct": int(prediction[index]) in work.members[label],
                "mask_share": None if reason else float(batch.masks[index].float().mean()),
                "left_out": reason,
                "logits": logits[index].tolist(),
            }
        )
    records.write(path, rows, records.PREDICTIONS)


def _prediction_part(work: Work, number: int) -> Path:
    return work.out / "predictions" / f"{number:06d}.parquet"


def _explain(work: Work, number: int, cells: list[Cell], seconds: dict[str, float], bar: tqdm) -> None:
    """Explain and score one chunk, one part per explainer with all its cells that are missing."""
    batch: Batch | None = None
    for explainer, wanted in _by_explainer(cells):
        begun = time.time()
        bar.set_postfix_str(explainer.name)
        folder = work.out / "parts" / records.identity(explainer.identity)
        missing = [cell for cell in wanted if cell.id not in _done(folder, number)]
        if missing:
            batch = batch or work.chunk(number)
            _explain_part(work, number, batch, explainer, missing, folder)
            seconds[str(explainer)] = seconds.get(str(explainer), 0.0) + time.time() - begun
        bar.update()


def _by_explainer(cells: list[Cell]) -> Iterator[tuple[Explainer, list[Cell]]]:
    for explainer in dict.fromkeys(cell.explainer for cell in cells):
        yield explainer, [cell for cell in cells if cell.explainer == explainer]


def _done(folder: Path, number: int) -> set[str]:
    parts = folder.glob(f"{number:06d}-*.parquet")
    return {cell_id for part in parts for cell_id in records.notes_of(part)["cells"]}


def _explain_part(work: Work, number: int, batch: Batch, explainer: Explainer, cells: list[Cell], folder: Path) -> None:
    predicted = pq.read_table(_prediction_part(work, number)).to_pylist()
    sides = [
        work.rule.sides(row["image_id"], row["label"], np.asarray(row["logits"]), work.members) for row in predicted
    ]
    target = stack(sides, len(predicted[0]["logits"])).to(batch.images.device)
    seeds = [seed_of(work.seed, image_id, "explain") for image_id in batch.ids]
    before = work.classifier.passes
    try:
        maps = explainer(work.classifier, batch.images, target, seeds=seeds)
    except NotFinite as error:
        raise UserError(
            f"{explainer} gave a map with NaN or infinite values for image {batch.ids[error.where[0]]}"
        ) from error
    passes = {"explain": work.classifier.passes - before}
    flat = is_flat(maps.cpu().numpy())
    supply = _Supply(work.classifier, batch, target, maps)
    rows: list[dict] = []
    for cell in cells:
        before = work.classifier.passes
        values, reasons = supply.score(cell.metric)
        passes[cell.id] = work.classifier.passes - before
        for index, row in enumerate(predicted):
            reason = reasons[index] or (records.FLAT if flat[index] else None)
            rows.append(_row(work, cell, row, sides[index], values[index], reason))
    name = f"{number:06d}-{records.identity([cell.id for cell in cells])}"
    save_thumbnails(work.out / "thumbnails" / folder.name / f"{number:06d}.npz", maps.cpu().numpy())
    records.write(folder / f"{name}.parquet", rows, records.SCHEMA, cells=[cell.id for cell in cells], passes=passes)


@dataclass
class _Supply:
    """What metrics may ask for, about one batch and its maps; made when first asked for."""

    classifier: Classifier
    batch: Batch
    target: torch.Tensor
    maps: Maps

    @cached_property
    def curves(self) -> Curves:
        return Curves(self.classifier, self.batch.images, self.target, self.maps)

    def score(self, metric: Metric) -> tuple[list[float | None], list[str | None]]:
        """(value or None, reason or None) of each sample."""
        reasons = list(self.batch.left_out) if "masks" in metric.needs else [None] * len(self.batch)
        kept = [index for index, reason in enumerate(reasons) if reason is None]
        values: list[float | None] = [None] * len(self.batch)
        if not kept:
            return values, reasons
        for index, score in zip(kept, metric(**self._inputs(metric, kept)), strict=True):
            if np.isfinite(score):
                values[index] = float(score)
            else:
                reasons[index] = "not defined for this sample"
        return values, reasons

    def _inputs(self, metric: Metric, kept: list[int]) -> dict:
        inputs = {
            "maps": lambda: self.maps.cpu().numpy()[kept],
            "masks": lambda: self.batch.masks.numpy()[kept],
            "curves": lambda: self.curves,
            "classifier": lambda: self.classifier,
            "images": lambda: self.batch.images[kept],
            "target": lambda: self.target[kept],
        }
        return {need: inputs[need]() for need in metric.needs}


def _row(work: Work, cell: Cell, predicted: dict, sides: Sides, value: float | None, reason: str | None) -> dict:
    names = work.classifier.labels
    return {
        "cell_id": cell.id,
        "dataset": work.dataset,
        "split": work.split,
        "model": work.classifier.id,
        "explainer": cell.explainer.name,
        "explainer_options": options.text(cell.explainer.options),
        "metric": cell.metric.name,
        "metric_options": options.text(cell.metric.options),
        "image_id": predicted["image_id"],
        "label": work.names[predicted["label"]],
        "prediction": names[predicted["prediction"]] if names else str(predicted["prediction"]),
        "target": sides.text(names),
        "exposure": None,
        "value": value,
        "reason": reason,
    }


def parts_of(folder: Path, chunks: int) -> list[Path]:
    """All parts of a run's first chunks, in the order of explainers in run.json, then chunks."""
    cells = read_json(folder / "run.json")["cells"].values()
    parts = [
        part
        for key in dict.fromkeys(cell["parts"] for cell in cells)
        for part in (folder / "parts" / key).glob("*.parquet")
    ]
    order = {key: position for position, key in enumerate(dict.fromkeys(cell["parts"] for cell in cells))}
    return sorted((p for p in parts if int(p.name[:6]) < chunks), key=lambda p: (order[p.parent.name], p.name))


def _merge(work: Work, samples: int) -> None:
    """Parts to records.parquet and predictions.parquet, cut to the samples asked for (a chunk is computed whole)."""
    chunks = -(-samples // work.batch_size)
    in_last = samples - (chunks - 1) * work.batch_size

    def tables(parts: list[Path]) -> Iterator[pa.Table]:
        for part in parts:
            table = pq.read_table(part)
            if int(part.name[:6]) == chunks - 1:
                rows_per_cell = len(table) // len(records.notes_of(part).get("cells", [None]))
                table = table.filter(pa.array(np.arange(len(table)) % rows_per_cell < in_last))
            yield table

    predictions = [_prediction_part(work, number) for number in range(chunks)]
    records.concat(tables(predictions), work.out / "predictions.parquet", records.PREDICTIONS)
    records.concat(tables(parts_of(work.out, chunks)), work.out / "records.parquet", records.SCHEMA)


def _command(dataset, model, split, target, label_map, limit, batch_size, seed, out, cells: list[Cell]) -> str:
    """The command line that makes this run again; a run of own functions or modules has none, and says so."""
    if not isinstance(model, str | Path) or isinstance(label_map, dict):
        return "saliency_bench.run (a model or label map given as a Python object)"
    explainers = list(dict.fromkeys(str(cell.explainer) for cell in cells))
    if own := [str(cell.explainer) for cell in cells if isinstance(cell.explainer.version, str)]:
        return f"saliency_bench.run ({own[0]} is a Python function)"
    words = ["saliency-bench", "run", "--dataset", dataset, "--model", str(model), "--explainers", *explainers,
             "--metrics", *dict.fromkeys(str(cell.metric) for cell in cells), "--split", split, "--target", target]  # fmt: skip
    words += ["--label-map", str(label_map)] if label_map else []
    words += ["--limit", str(limit)] if limit else []
    words += ["--batch-size", str(batch_size), "--seed", str(seed), "--out", str(out)]
    return shlex.join(words)


def _listed(thing) -> list:
    listed = [thing] if isinstance(thing, str | Explainer | Metric) or callable(thing) else list(thing)
    if not listed:
        raise UserError("a run needs at least one explainer and one metric")
    return listed
