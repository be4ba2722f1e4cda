"""Score: the maps of a batch by every metric, and the rows that records are made of.

What a metric asks for is resolved in `compute/scoring/inputs.py`, which `evaluate` modules use as well. This module
adds what only a run has: right classes, groups, the other model, partners, retrained networks.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import torch

from saliency_bench.bound_explainer import Explainer
from saliency_bench.compute.context import Cell, RunContext
from saliency_bench.compute.explain import Explained, images_text
from saliency_bench.compute.predictions import probabilities_of
from saliency_bench.compute.scoring.inputs import MetricInputs, OtherModel, ScoredBatch, Value
from saliency_bench.compute.scoring.partners import PartnerSource
from saliency_bench.compute.targets.terms import TargetTerms
from saliency_bench.errors import UserError
from saliency_bench.read.parts import POSITION
from saliency_bench.score_notes import NO_PROBABILITIES, lacks
from saliency_bench.types import Batch, Samples, Target

Scores = dict[str, tuple[ScoredBatch, int]]  # {cell id: (its scores, images that went through the classifier)}


def score(
    context: RunContext,
    samples: Samples,
    explainer: Explainer,
    target: Target,
    explained: Explained,
    cells: Sequence[Cell],
) -> tuple[Scores, int]:
    """Return the scores of all cells of an explainer, and how often a batch was halved for further maps.

    Args:
        context: what the run works on.
        samples: that are scored.
        explainer: made the maps; metrics may ask for further ones.
        target: (B, K), of the maps.
        explained: the maps.
        cells: of the explainer.

    Raises:
        UserError: The run is strict, and a sample has no score for a reason that it should not have.
    """
    batch = samples.batch
    if explained.maps is None:
        return {cell.id: (left_out(context, cell, explained.faults), 0) for cell in cells}, 0
    inputs = inputs_of(context, samples, explainer, target, explained, cells)
    scores: Scores = {}
    for cell in cells:
        before = context.classifier.passes
        scored = inputs.score(cell.metric)
        scores[cell.id] = scored, context.classifier.passes - before
        if scored.faulty and context.spec.strict:
            first, reason = min(scored.faulty.items())
            images = images_text(batch) if scored.raised else f"image {batch.ids[first]}"
            raise UserError(f"{cell.explainer} for {cell.metric}, {images}: {reason}")
    return scores, inputs.halved


def inputs_of(
    context: RunContext,
    samples: Samples,
    explainer: Explainer,
    target: Target,
    explained: Explained,
    cells: Sequence[Cell] = (),
) -> MetricInputs:
    """Return what metrics may ask for; the arguments are those of `score`."""
    batch = samples.batch
    return MetricInputs(
        classifier=context.classifier,
        explainer=explainer.seeded(context.spec.seed),
        images=batch.images,
        target=target,
        logits=torch.tensor([row["logits"] for row in samples.rows]),
        labels=_right_classes(context, samples.rows),
        seed_for=lambda index, purpose: context.seed_for(batch.ids[index], purpose),
        maps=explained.maps,
        masks=batch.masks.numpy(),
        unusable=batch.left_out,
        groups=context.question.groups,
        faults=_without_probabilities(context, batch, samples.rows),
        map_faults=explained.faults,
        columns=batch.columns,
        run_seed=context.spec.seed,
        other=None if context.other is None else other_of(context.other, batch, samples.rows_of_other or []),
        partners=PartnerSource(context.plans, samples.positions, context.partners, context.spec.batch_size),
        retrained={
            cell.metric: context.retraining.classes[cell.id][samples.positions]
            for cell in cells
            if cell.metric.declaration.keeps
        },
    )


def left_out(context: RunContext, cell: Cell, reasons: dict[int, str]) -> ScoredBatch:
    """Return a batch without scores: of each sample the reason why."""
    listed: list[str | None] = [reasons[index] for index in range(len(reasons))]
    empty: list[Value] = [None] * len(listed)
    names = cell.metric.parts(context.classifier)
    return ScoredBatch(list(empty), list(listed), dict.fromkeys(names, empty), dict.fromkeys(names, listed))


def _without_probabilities(context: RunContext, batch: Batch, rows: list[dict]) -> dict[int, str]:
    """Return {index: reason} of samples whose probabilities are not finite.

    Raises:
        UserError: There is such a sample, and the run is strict.
    """
    without = [index for index, row in enumerate(rows) if row["prediction"] is None]
    if without and context.spec.strict:
        raise UserError(f"image {batch.ids[without[0]]}: {NO_PROBABILITIES}")
    return dict.fromkeys(without, NO_PROBABILITIES)


def _right_classes(context: RunContext, rows: list[dict]) -> np.ndarray | None:
    """Return Bool (B, K), the classes that are right for each sample; None where no labels are known."""
    right = [classes for classes in map(context.question.right, rows) if classes is not None]
    return np.stack(right) if right else None


def other_of(context: RunContext, batch: Batch, rows: list[dict]) -> OtherModel:
    """Return the other model's predictions for samples; `context` is the run of the other model."""
    _without_probabilities(context, batch, rows)
    right = _right_classes(context, rows)
    assert right is not None
    blank = [0.0] * context.question.classes
    return OtherModel(
        classifier=context.classifier,
        logits=torch.tensor([row["logits"] or blank for row in rows]),
        labels=right,
        lacking=[_lacking(context, row, classes.any()) for row, classes in zip(rows, right, strict=True)],
    )


def _lacking(context: RunContext, row: dict, labelled: bool) -> str | None:
    """Return why the other model has nothing to say of a sample, else None."""
    if row["prediction"] is None:
        return f"other model: {row['left_out'] if row['logits'] is None else NO_PROBABILITIES}"
    return None if labelled else lacks(context.spec.label_column)


def rows_of(
    context: RunContext,
    cell: Cell,
    samples: Samples,
    terms: Sequence[TargetTerms],
    scores: ScoredBatch,
    explained: Explained,
) -> Iterator[dict]:
    """Yield a row per sample, each followed by the rows of its parts.

    Args:
        context: what the run works on.
        cell: the explainer and metric.
        samples: of the batch.
        terms: the target of each sample.
        scores: of the samples.
        explained: the maps; each row of a score includes the reliability of its map.
    """
    classes = context.class_names
    targets = _questions(context, cell, samples.rows) or [(term,) for term in terms]
    parts = cell.metric.parts(context.classifier)
    for index, position in enumerate(samples.positions):
        target = ", ".join(term.text(classes) for term in targets[index]) or None
        of_sample: dict[str, object] = {POSITION: position, "target": target}
        of_map = {"reliability": explained.reliability_of(index), "draws": explained.draws}
        yield of_sample | of_map | {"part": None, "value": scores.values[index], "reason": scores.reasons[index]}
        for part in parts:
            value, reason = scores.parts[part][index], scores.part_reasons[part][index]
            yield of_sample | {"part": part, "value": value, "reason": reason}


def _questions(context: RunContext, cell: Cell, rows: list[dict]) -> Sequence[tuple[TargetTerms, ...]]:
    """Return per sample the targets that a metric with its own question asks about; [] of one that asks the run's."""
    if cell.metric.asks_of_target or not rows:
        return []
    p = probabilities_of(context.classifier, torch.tensor([row["logits"] for row in rows]))
    return cell.metric.questions(p, context.question.groups) or [()] * len(rows)
