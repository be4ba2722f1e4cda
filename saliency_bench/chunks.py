"""The unit of work: a chunk of samples, predicted, or explained by one explainer and scored by all its metrics."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import torch
from tqdm import tqdm

from saliency_bench import options, records
from saliency_bench.classifier import Classifier
from saliency_bench.errors import UserError
from saliency_bench.examples import save_thumbnails
from saliency_bench.explainer import Explainer, NotFiniteError
from saliency_bench.maps import is_flat
from saliency_bench.metric import Metric
from saliency_bench.perturbation import Curves
from saliency_bench.seeds import seed_of
from saliency_bench.target_rules import Sides, stack
from saliency_bench.types import Batch, Maps
from saliency_bench.work import Cell, Work


def predict(work: Work, number: int) -> None:
    path = prediction_part(work, number)
    if path.exists():
        return
    batch = work.chunk(number)
    with torch.no_grad():
        logits = work.classifier(batch.images).float().cpu()
    confidence, prediction = logits.double().softmax(dim=1).max(dim=1)
    rows = []
    for index, image_id in enumerate(batch.ids):
        label = int(batch.labels[index])
        if label < 0:
            raise UserError(f"image {image_id} has no label; leave it out of the dataset")
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


def prediction_part(work: Work, number: int) -> Path:
    return work.out / "predictions" / f"{number:06d}.parquet"


def explain(work: Work, number: int, cells: list[Cell], seconds: dict[str, float], advance: tqdm) -> None:
    """Explain and score one chunk, one part per explainer with all its cells that are missing."""
    batch: Batch | None = None
    for explainer, wanted in _by_explainer(cells):
        begun = time.time()
        advance.set_postfix_str(explainer.name)
        folder = work.out / "parts" / records.identity(explainer.identity)
        missing = [cell for cell in wanted if cell.id not in _done(folder, number)]
        if missing:
            batch = batch or work.chunk(number)
            _explain_part(work, number, batch, explainer, missing, folder)
            seconds[str(explainer)] = seconds.get(str(explainer), 0.0) + time.time() - begun
        advance.update()


def _by_explainer(cells: list[Cell]) -> Iterator[tuple[Explainer, list[Cell]]]:
    for explainer in dict.fromkeys(cell.explainer for cell in cells):
        yield explainer, [cell for cell in cells if cell.explainer == explainer]


def _done(folder: Path, number: int) -> set[str]:
    parts = folder.glob(f"{number:06d}-*.parquet")
    return {cell_id for part in parts for cell_id in records.notes_of(part)["cells"]}


def _explain_part(work: Work, number: int, batch: Batch, explainer: Explainer, cells: list[Cell], folder: Path) -> None:
    predicted = pq.read_table(prediction_part(work, number)).to_pylist()
    sides = [
        work.rule.sides(row["image_id"], row["label"], np.asarray(row["logits"]), work.members) for row in predicted
    ]
    target = stack(sides, len(predicted[0]["logits"])).to(batch.images.device)
    seeds = [seed_of(work.seed, image_id, "explain") for image_id in batch.ids]
    before = work.classifier.passes
    try:
        maps = explainer(work.classifier, batch.images, target, seeds=seeds)
    except NotFiniteError as error:
        raise UserError(
            f"{explainer} gave a map with NaN or infinite values for image {batch.ids[error.where[0]]}"
        ) from error
    passes = {"explain": work.classifier.passes - before}
    flat = is_flat(maps.cpu().numpy())
    supply = Supply(work.classifier, batch, target, maps)
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
class Supply:
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
        reasons: list[str | None] = list(self.batch.left_out) if "masks" in metric.needs else [None] * len(self.batch)
        kept = [index for index, reason in enumerate(reasons) if reason is None]
        values: list[float | None] = [None] * len(self.batch)
        if not kept:
            return values, reasons
        try:
            scores = metric(**self._inputs(metric, kept))
        except UserError:
            raise
        except ValueError as error:  # metrics that need no core say it in their own words
            raise UserError(f"{metric}: {error}") from error
        for index, score in zip(kept, scores, strict=True):
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
