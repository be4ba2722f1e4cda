"""The unit of work: a chunk of samples, predicted, or explained by one explainer and scored by all its metrics.

What goes wrong with a sample or a chunk becomes the reason in its records; a strict run stops instead.
"""

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from itertools import zip_longest
from pathlib import Path
from time import perf_counter

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from saliency_bench import options
from saliency_bench.engine.context import Cell, RunContext
from saliency_bench.engine.examples import save_thumbnails
from saliency_bench.errors import UserError
from saliency_bench.explainer import Explainer
from saliency_bench.explaining.map_provider import ExplainerRaisedError, MapProvider, halving, not_finite, reason_of
from saliency_bench.maps import is_flat
from saliency_bench.metric import Metric
from saliency_bench.reasons import NO_PROBABILITIES, NO_PROBABILITIES_CHANGED, NOT_FINITE, is_expected, reason_for
from saliency_bench.results import records
from saliency_bench.scoring.perturbation import Curves
from saliency_bench.targets.rules import TargetTerms, stack
from saliency_bench.types import Batch, Chunk, Maps, Target
from saliency_bench.utils.hashing import identity
from saliency_bench.utils.messages import complain
from saliency_bench.utils.seeds import seed_of


def ahead(context: RunContext, numbers: list[int], waited: Callable[[float], None]) -> Iterator[tuple[int, Chunk]]:
    """The chunks in order, each read by a thread while the one before is worked on; `waited` is told what it cost."""
    with ThreadPoolExecutor(max_workers=1) as reader:
        coming = deque(reader.submit(context.chunk, number) for number in numbers[:1])
        for number, following in zip_longest(numbers, numbers[1:]):
            begun = perf_counter()
            chunk = coming.popleft().result()
            waited(perf_counter() - begun)
            if following is not None:
                coming.append(reader.submit(context.chunk, following))
            yield number, chunk


def prediction_part(context: RunContext, number: int) -> Path:
    return context.out / "predictions" / f"{number:06d}.parquet"


def is_predicted(context: RunContext, number: int) -> bool:
    return read_part(prediction_part(context, number)) is not None


def predict(context: RunContext, number: int, chunk: Chunk) -> list[dict]:
    """What the classifier says of a chunk, row by row; null where a sample could not be read. Written if not there.

    A sample without probabilities has no prediction.
    """
    if (part := read_part(prediction_part(context, number))) is not None:
        return part.to_pylist()
    logits = None
    if chunk.batch is not None:
        with torch.no_grad():
            logits = context.classifier(chunk.batch.images).cpu()
    place = {position: index for index, position in enumerate(chunk.readable)}
    rows = []
    for position, (image_id, label) in enumerate(chunk.rows):
        row: dict = {"image_id": image_id, "label": label, "left_out": chunk.faults.get(position)}
        if position in place and logits is not None and chunk.batch is not None:
            row |= _predicted(context, chunk.batch, place[position], logits, label)
        rows.append(row)
    # As the file gives it back, so that it makes no difference who wrote it.
    return records.write(
        prediction_part(context, number), rows, records.PREDICTIONS, faults=len(chunk.faults)
    ).to_pylist()


def _predicted(context: RunContext, batch: Batch, index: int, logits: torch.Tensor, label: int) -> dict:
    reason = batch.left_out[index]
    row = {
        "mask_share": None if reason else float(batch.masks[index].float().mean()),
        "left_out": reason,
        "logits": logits[index].tolist(),
    }
    confidence, prediction = logits[index].double().softmax(dim=0).max(dim=0)
    if confidence.isnan():  # no probabilities (`targets.no_probabilities`)
        return row
    return row | {
        "prediction": int(prediction),
        "confidence": float(confidence),
        "correct": int(prediction) in context.members[label],
    }


def missing(context: RunContext, number: int, cells: list[Cell]) -> list[Cell]:
    """The cells of a chunk that no whole part holds."""
    done = {
        explainer: _done(context, explainer, number) for explainer in dict.fromkeys(cell.explainer for cell in cells)
    }
    return [cell for cell in cells if cell.id not in done[cell.explainer]]


def by_explainer(cells: list[Cell]) -> dict[Explainer, list[Cell]]:
    found: dict[Explainer, list[Cell]] = {}
    for cell in cells:
        found.setdefault(cell.explainer, []).append(cell)
    return found


def _folder(context: RunContext, explainer: Explainer) -> Path:
    return context.out / "parts" / identity(explainer.identity)


def _done(context: RunContext, explainer: Explainer, number: int) -> set[str]:
    """The cells in whole parts. What cannot be read is named and done again.

    So is a chunk whose explainer raised, which may have been a passing trouble; and any fault, if the run is strict.
    """
    done: set[str] = set()
    for path in _folder(context, explainer).glob(f"{number:06d}-*.parquet"):
        part = read_part(path)
        notes = None if part is None else records.notes_in(part.schema)
        if notes is None or notes["raised"] or (context.spec.strict and notes["faults"]):
            path.unlink()
        else:
            done |= set(notes["cells"])
    return done


def read_part(path: Path) -> pa.Table | None:
    """A part that is there and whole, else None; a torn one is named on standard error."""
    if not path.exists():
        return None
    try:
        part = pq.read_table(path)
        records.notes_in(part.schema)
        return part
    except (pa.ArrowException, OSError, ValueError, KeyError):
        complain(f"{path} cannot be read and is done again")
        return None


def explain(
    context: RunContext, number: int, chunk: Chunk, predicted: list[dict], explainer: Explainer, cells: list[Cell]
) -> None:
    """Explain a chunk, score its maps by all cells, write one part."""
    readable = [predicted[position] for position in chunk.readable]
    sides = [
        context.rule.terms(row["image_id"], row["label"], np.asarray(row["logits"]), context.members)
        for row in readable
    ]
    passes: dict[str, int] = {}
    scored: dict[str, Scored] = {cell.id: ([], []) for cell in cells}
    halved, raised = 0, False
    if chunk.batch is not None:
        without = [index for index, row in enumerate(readable) if row["prediction"] is None]
        if without and context.spec.strict:
            raise UserError(f"image {chunk.batch.ids[without[0]]}: {NO_PROBABILITIES}")
        target = stack(sides, len(readable[0]["logits"])).to(chunk.batch.images.device)
        before = context.classifier.passes
        maps, faults, halved = _maps(context, chunk.batch, explainer, target)
        faults |= dict.fromkeys(without, NO_PROBABILITIES)
        passes["explain"] = context.classifier.passes - before
        raised = maps is None
        if maps is not None:
            save_thumbnails(
                context.out / "thumbnails" / _folder(context, explainer).name / f"{number:06d}.npz", maps, chunk
            )
            logits = torch.tensor([row["logits"] for row in readable])
            supply = Supply(context, chunk.batch, target, maps, explainer, logits)
            scored = _scores(supply, faults, cells, passes)
            halved, raised = halved + supply.halved, supply.raised
        else:
            reasons: list[str | None] = [faults[index] for index in range(len(chunk.batch))]
            scored = {cell.id: ([None] * len(chunk.batch), reasons) for cell in cells}
    rows = [row for cell in cells for row in _rows(context, cell, chunk, predicted, sides, *scored[cell.id])]
    part = _folder(context, explainer) / f"{number:06d}-{identity([cell.id for cell in cells])}.parquet"
    faulty = sum(row["value"] is None and not is_expected(row["reason"]) for row in rows)
    records.write(
        part,
        rows,
        records.SCHEMA,
        cells=[cell.id for cell in cells],
        passes=passes,
        halved=halved,
        faults=faulty,
        raised=raised,
    )


Scored = tuple[list[float | None], list[str | None]]  # value or None, and reason or None, of each sample


def _maps(
    context: RunContext, batch: Batch, explainer: Explainer, target: Target
) -> tuple[Maps | None, dict[int, str], int]:
    """(maps, {index: what is wrong with this one}, how often the batch was halved); no maps if the explainer raised."""
    try:
        maps, halved = halving(
            explainer.seeded(context.spec.seed), context.classifier, batch.images, target, _seeds(context, batch)
        )
    except UserError:  # a refusal by name, which holds for every chunk
        raise
    except Exception as error:
        reason = reason_of(error)
        if context.spec.strict:
            raise UserError(f"{explainer}, images from {batch.ids[0]} to {batch.ids[-1]}: {reason}") from error
        return None, dict.fromkeys(range(len(batch)), reason), 0
    bad = not_finite(maps)
    reason = getattr(explainer.function, "not_finite", NOT_FINITE)
    if bad and context.spec.strict:
        raise UserError(f"{explainer}, image {batch.ids[bad[0]]}: {reason}")
    return maps.nan_to_num(0, 0, 0) if bad else maps, dict.fromkeys(bad, reason), halved


def _seeds(context: RunContext, batch: Batch) -> list[int]:
    return [seed_of(context.spec.seed, image_id, "explain") for image_id in batch.ids]


def _scores(supply: "Supply", faults: dict[int, str], cells: list[Cell], passes: dict[str, int]) -> dict[str, Scored]:
    """{cell: values and reasons of the batch}"""
    found: dict[str, Scored] = {}
    for cell in cells:
        before = supply.context.classifier.passes
        found[cell.id] = supply.score(cell.metric, faults)
        passes[cell.id] = supply.context.classifier.passes - before
    return found


@dataclass
class Supply:
    """What metrics may ask for, about one batch and its maps; made when first asked for.

    `halved` and `raised` say what happened to further maps: batches that did not fit in memory, a failed explainer.
    """

    context: RunContext
    batch: Batch
    target: torch.Tensor
    maps: Maps
    explainer: Explainer
    logits: torch.Tensor
    halved: int = 0
    raised: bool = False

    @cached_property
    def curves(self) -> Curves:
        seeds = [seed_of(self.context.spec.seed, image_id, "noise") for image_id in self.batch.ids]
        return Curves(self.context.classifier, self.batch.images, self.target, self.maps, seeds)

    @cached_property
    def flat(self) -> np.ndarray:
        return is_flat(self.maps.cpu().numpy())

    def score(self, metric: Metric, faults: dict[int, str]) -> Scored:
        """A metric's values where they are defined, reasons where not; of flat maps and of what it marks, both."""
        reasons: list[str | None] = list(self.batch.left_out) if "masks" in metric.needs else [None] * len(self.batch)
        for index, reason in faults.items():
            reasons[index] = reason
        # A metric of curves gets the whole batch, which shares its passes with other metrics.
        asked = [index for index, reason in enumerate(reasons) if reason is None or "curves" in metric.needs]
        values: list[float | None] = [None] * len(self.batch)
        if not asked:
            return values, reasons
        explain = self._explain(asked)
        inputs = self._inputs(metric, asked, explain)
        try:
            scores, marked = metric(**inputs), metric.marks(**inputs)
        except ExplainerRaisedError as error:
            if self.context.spec.strict:
                ids = self.batch.ids
                raise UserError(f"{self.explainer} for {metric}, images from {ids[0]} to {ids[-1]}: {error}") from error
            self.raised = True
            return values, [reason or str(error) for reason in reasons]
        except UserError:
            raise
        except ValueError as error:  # metrics that need no core say it in their own words
            raise UserError(f"{metric}: {error}") from error
        self.halved += explain.halved
        faulty = explain.faulty
        if "curves" in metric.needs:
            faulty = faulty | dict.fromkeys(self.curves.lost(scores), NO_PROBABILITIES_CHANGED)
        for place, reason in faulty.items():
            if self.context.spec.strict:
                raise UserError(f"{self.explainer} for {metric}, image {self.batch.ids[asked[place]]}: {reason}")
            reasons[asked[place]] = reasons[asked[place]] or reason
        own = "explain" in metric.needs and not {"maps", "curves"} & set(metric.needs)
        for place, (index, score) in enumerate(zip(asked, scores, strict=True)):
            if reasons[index] is None:
                flat = place in explain.flat if own else bool(self.flat[index])
                values[index] = float(score) if np.isfinite(score) else None
                mark = metric.mark if marked is not None and marked[place] else ""
                reasons[index] = reason_for(values[index], flat, metric.undefined, mark)
        return values, reasons

    def _explain(self, kept: list[int]) -> MapProvider:
        seeds = _seeds(self.context, self.batch)
        whole = len(kept) == len(self.batch)
        images, target, maps = self.batch.images, self.target, self.maps
        first = (images, target, maps) if whole else (images[kept], target[kept], maps[kept])
        explainer = self.explainer.seeded(self.context.spec.seed)
        return MapProvider(explainer, self.context.classifier, [seeds[index] for index in kept], first)

    def _inputs(self, metric: Metric, kept: list[int], explain: MapProvider) -> dict:
        ids = [self.batch.ids[index] for index in kept]
        assert explain.first is not None
        images, target, maps = explain.first
        inputs = {
            "maps": lambda: maps.cpu().numpy(),
            "masks": lambda: self.batch.masks.numpy()[kept],
            "curves": lambda: self.curves,
            "classifier": lambda: self.context.classifier,
            "images": lambda: images,
            "target": lambda: target,
            "logits": lambda: self.logits[kept],
            "groups": lambda: self.context.groups,
            "explain": lambda: explain,
            "seeds": lambda: [seed_of(self.context.spec.seed, image_id, metric.name) for image_id in ids],
        }
        return {need: inputs[need]() for need in metric.needs}


def _rows(
    context: RunContext,
    cell: Cell,
    chunk: Chunk,
    predicted: list[dict],
    sides: list[TargetTerms],
    values: list[float | None],
    reasons: list[str | None],
) -> Iterator[dict]:
    """A record per sample of the chunk, also of those that could not be read."""
    names = context.classifier.labels
    place = {position: index for index, position in enumerate(chunk.readable)}
    for position, row in enumerate(predicted):
        index = place.get(position)
        prediction = row["prediction"]
        yield {
            "cell_id": cell.id,
            "dataset": context.dataset,
            "split": context.spec.split,
            "model": context.classifier.id,
            "explainer": cell.explainer.name,
            "explainer_options": options.text(cell.explainer.options),
            "metric": cell.metric.name,
            "metric_options": options.text(cell.metric.options),
            "image_id": row["image_id"],
            "label": context.names[row["label"]],
            "prediction": None if prediction is None else names[prediction] if names else str(prediction),
            "target": None if index is None else sides[index].text(names),
            "exposure": None,
            "value": None if index is None else values[index],
            "reason": chunk.faults[position] if index is None else reasons[index],
        }
