"""The unit of work: a chunk of samples, explained by one explainer and scored by all its metrics, in one file.

What goes wrong with a sample or a chunk becomes the reason in its records; a strict run stops instead.
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import torch

from saliency_bench import options
from saliency_bench.engine.context import Cell, RunContext
from saliency_bench.engine.examples import save_thumbnails
from saliency_bench.errors import UserError
from saliency_bench.explainer import Explainer
from saliency_bench.explaining.map_provider import halving, not_finite, reason_of
from saliency_bench.reasons import NO_PROBABILITIES, NOT_FINITE, is_expected
from saliency_bench.results import records
from saliency_bench.scoring.inputs import MetricInputs, ScoredBatch, Value
from saliency_bench.targets.rules import TargetTerms, stack
from saliency_bench.types import Batch, Chunk, Maps, Target
from saliency_bench.utils.hashing import hash_of
from saliency_bench.utils.seeds import seed_of


def by_explainer(cells: list[Cell]) -> dict[Explainer, list[Cell]]:
    found: dict[Explainer, list[Cell]] = {}
    for cell in cells:
        found.setdefault(cell.explainer, []).append(cell)
    return found


def missing(context: RunContext, number: int, cells: list[Cell]) -> list[Cell]:
    """The cells of a chunk that no whole file holds."""
    done = {explainer: _done(context, explainer, number) for explainer in by_explainer(cells)}
    return [cell for cell in cells if cell.id not in done[cell.explainer]]


def _folder(context: RunContext, explainer: Explainer) -> Path:
    return context.out / "chunks" / hash_of(explainer.identity)


def _done(context: RunContext, explainer: Explainer, number: int) -> set[str]:
    """The cells in whole files. What cannot be read is named and recomputed.

    So is a chunk whose explainer raised, which may have been a temporary failure; and any fault, if the run is strict.
    """
    done: set[str] = set()
    for path in _folder(context, explainer).glob(f"{number:06d}-*.parquet"):
        table = records.read_whole(path)
        notes = None if table is None else records.notes_in(table.schema)
        if notes is None or notes["raised"] or (context.spec.strict and notes["faults"]):
            path.unlink()
        else:
            done |= set(notes["cells"])
    return done


def explain_and_score(
    context: RunContext, number: int, chunk: Chunk, predicted: list[dict], explainer: Explainer, cells: list[Cell]
) -> None:
    """Explain a chunk, score its maps by all cells, write one file."""
    folder = _folder(context, explainer)
    readable = [predicted[position] for position in chunk.readable]
    terms = [
        context.rule.terms(row["image_id"], row["label"], np.asarray(row["logits"]), context.members)
        for row in readable
    ]
    passes: dict[str, int] = {}
    scored: dict[str, ScoredBatch] = {}
    halved, raised = 0, False
    if chunk.batch is not None:
        target = stack(terms, len(readable[0]["logits"])).to(chunk.batch.images.device)
        faults = _without_probabilities(context, chunk.batch, readable)
        before = context.classifier.passes
        maps, reasons, halved = _maps(context, chunk.batch, explainer, target)
        passes["explain"] = context.classifier.passes - before
        if maps is None:
            raised = True
            scored = {cell.id: _unscored(context, cell, reasons) for cell in cells}
        else:
            save_thumbnails(context.out / "thumbnails" / folder.name / f"{number:06d}.npz", maps, chunk)
            logits = torch.tensor([row["logits"] for row in readable])
            inputs = _inputs(context, chunk.batch, target, maps, explainer, logits, reasons | faults)
            for cell in cells:
                before = context.classifier.passes
                scored[cell.id] = _scores(context, inputs, cell, chunk.batch)
                passes[cell.id] = context.classifier.passes - before
            halved, raised = halved + inputs.halved, any(scores.raised for scores in scored.values())
    rows = [row for cell in cells for row in _rows(context, cell, chunk, predicted, terms, scored.get(cell.id))]
    records.write(
        folder / f"{number:06d}-{hash_of([cell.id for cell in cells])}.parquet",
        rows,
        records.SCHEMA,
        cells=[cell.id for cell in cells],
        passes=passes,
        halved=halved,
        faults=sum(row["part"] is None and row["value"] is None and not is_expected(row["reason"]) for row in rows),
        raised=raised,
    )


def _without_probabilities(context: RunContext, batch: Batch, readable: list[dict]) -> dict[int, str]:
    without = [index for index, row in enumerate(readable) if row["prediction"] is None]
    if without and context.spec.strict:
        raise UserError(f"image {batch.ids[without[0]]}: {NO_PROBABILITIES}")
    return dict.fromkeys(without, NO_PROBABILITIES)


def _maps(
    context: RunContext, batch: Batch, explainer: Explainer, target: Target
) -> tuple[Maps | None, dict[int, str], int]:
    """(maps, {index: what is wrong with this one}, how often the batch was halved); no maps if the explainer raised."""
    seeds = [_seed(context, batch, index, "explain") for index in range(len(batch))]
    try:
        maps, halved = halving(explainer.seeded(context.spec.seed), context.classifier, batch.images, target, seeds)
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


def _seed(context: RunContext, batch: Batch, index: int, purpose: str) -> int:
    return seed_of(context.spec.seed, batch.ids[index], purpose)


def _inputs(
    context: RunContext, batch: Batch, target: Target, maps: Maps, explainer: Explainer, logits: torch.Tensor,
    faults: dict[int, str],
) -> MetricInputs:  # fmt: skip
    return MetricInputs(
        classifier=context.classifier,
        explainer=explainer.seeded(context.spec.seed),
        images=batch.images,
        target=target,
        logits=logits,
        seed_for=partial(_seed, context, batch),
        maps=maps,
        masks=batch.masks.numpy(),
        unusable=batch.left_out,
        groups=context.groups,
        faults=faults,
    )


def _scores(context: RunContext, inputs: MetricInputs, cell: Cell, batch: Batch) -> ScoredBatch:
    scores = inputs.score(cell.metric)
    if scores.faulty and context.spec.strict:
        first, reason = min(scores.faulty.items())
        images = f"images from {batch.ids[0]} to {batch.ids[-1]}" if scores.raised else f"image {batch.ids[first]}"
        raise UserError(f"{cell.explainer} for {cell.metric}, {images}: {reason}")
    return scores


def _unscored(context: RunContext, cell: Cell, reasons: dict[int, str]) -> ScoredBatch:
    """For every sample of a batch the reason why there is no map."""
    listed: list[str | None] = [reasons[index] for index in range(len(reasons))]
    names = cell.metric.parts(context.classifier)
    empty: list[Value] = [None] * len(listed)
    return ScoredBatch(empty, listed, dict.fromkeys(names, empty), dict.fromkeys(names, listed))


def _rows(
    context: RunContext,
    cell: Cell,
    chunk: Chunk,
    predicted: list[dict],
    terms: list[TargetTerms],
    scores: ScoredBatch | None,
) -> Iterator[dict]:
    """A record per sample of the chunk, also of those that could not be read, each followed by those of its parts."""
    classes = context.classifier.labels
    index_of = {position: index for index, position in enumerate(chunk.readable)}
    parts = cell.metric.parts(context.classifier)
    of_cell = {
        "cell_id": cell.id,
        "dataset": context.dataset,
        "split": context.spec.split,
        "model": context.classifier.id,
        "explainer": cell.explainer.name,
        "explainer_options": options.text(cell.explainer.options),
        "metric": cell.metric.name,
        "metric_options": options.text(cell.metric.options),
    }
    for position, row in enumerate(predicted):
        index, prediction = index_of.get(position), row["prediction"]
        of_sample = of_cell | {
            "image_id": row["image_id"],
            "group": row["group"],
            "label": context.names[row["label"]],
            "prediction": None if prediction is None else classes[prediction] if classes else str(prediction),
            "target": None if index is None else terms[index].text(classes),
        }
        if index is None or scores is None:
            unread = {"value": None, "reason": chunk.faults[position]}
            yield from (of_sample | {"part": part} | unread for part in (None, *parts))
            continue
        yield of_sample | {"part": None, "value": scores.values[index], "reason": scores.reasons[index]}
        for part in parts:
            value, reason = scores.parts[part][index], scores.part_reasons[part][index]
            yield of_sample | {"part": part, "value": value, "reason": reason}
