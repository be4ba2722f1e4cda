"""Score the maps of a batch with every metric, and create the rows of the records.

`compute/scoring/inputs.py` provides the inputs of metrics for runs and for `evaluate` modules. This module adds
inputs that only a run can provide: correct classes, groups, the other model, partners and retrained networks.
"""

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np
import torch

from saliency_bench.bound_explainer import Explainer
from saliency_bench.compute.cells import Cell
from saliency_bench.compute.classifiers.classifier import Classifier
from saliency_bench.compute.explain import Explained, images_text
from saliency_bench.compute.loaded import RunModel, RunQuestion
from saliency_bench.compute.loading.table import SplitTable
from saliency_bench.compute.predictions import probabilities_of
from saliency_bench.compute.scoring.inputs import MetricInputs, OtherModel, ScoredBatch, Value
from saliency_bench.compute.scoring.partners import PartnerSource
from saliency_bench.compute.targets.terms import TargetTerms
from saliency_bench.errors import UserError
from saliency_bench.read.parts import POSITION
from saliency_bench.score_notes import NO_PROBABILITIES, lacks
from saliency_bench.types import Batch, Samples, Target
from saliency_bench.utils.seeds import seed_of

Scores = dict[str, tuple[ScoredBatch, int]]  # {cell id: (scores, number of images passed through the classifier)}


def score(
    data: SplitTable, model: RunModel, samples: Samples, target: Target, explained: Explained, cells: Sequence[Cell]
) -> tuple[Scores, int]:
    """Return (scores of an explainer's cells, number of times that a batch was halved for maps that metrics requested).

    Raises:
        UserError: The run is strict, and a score is missing for an unexpected reason.
    """
    batch, classifier = samples.batch, model.classifier
    if explained.maps is None or not cells:
        return {cell.id: (left_out(classifier, cell, explained.faults), 0) for cell in cells}, 0
    inputs = inputs_of(data, model, samples, cells[0].explainer, target, explained)
    plans = {cell.metric: cell.plan for cell in cells if cell.plan is not None}
    load = partial(model.partners, data)
    inputs.partners = PartnerSource(plans, samples.positions, load, data.spec.batch_size)
    inputs.retrained = {cell.metric: cell.retrained[samples.positions] for cell in cells if cell.retrained is not None}
    scores: Scores = {}
    for cell in cells:
        before = classifier.passes
        scored = inputs.score(cell.metric)
        scores[cell.id] = scored, classifier.passes - before
        if scored.faulty and data.spec.strict:
            first, reason = min(scored.faulty.items())
            images = images_text(batch) if scored.raised else f"image {batch.ids[first]}"
            raise UserError(f"{cell.explainer} for {cell.metric}, {images}: {reason}")
    return scores, inputs.halved


def inputs_of(
    data: SplitTable, model: RunModel, samples: Samples, explainer: Explainer, target: Target, explained: Explained
) -> MetricInputs:
    """Return all inputs that metrics may need, except partners and retrained networks.

    The arguments are the same as for `score`. `explainer` computes the additional maps that metrics request.
    """
    batch, seed, strict, other = samples.batch, data.spec.seed, data.spec.strict, model.other
    return MetricInputs(
        classifier=model.classifier,
        explainer=explainer.seeded(seed),
        images=batch.images,
        target=target,
        logits=torch.tensor([row["logits"] for row in samples.rows]),
        labels=_right_classes(model.question, samples.rows),
        seed_for=lambda index, purpose: seed_of(seed, batch.ids[index], purpose),
        maps=explained.maps,
        masks=batch.masks.numpy(),
        unusable=batch.left_out,
        groups=model.question.groups,
        faults=_without_probabilities(batch, samples.rows, strict),
        map_faults=explained.faults,
        columns=batch.columns,
        run_seed=seed,
        other=None if other is None else other_of(other, samples, strict),
    )


def left_out(classifier: Classifier, cell: Cell, reasons: dict[int, str]) -> ScoredBatch:
    """Return a result without scores for a batch, given the reason for each sample."""
    listed: list[str | None] = [reasons[index] for index in range(len(reasons))]
    empty: list[Value] = [None] * len(listed)
    names = cell.metric.parts(classifier)
    return ScoredBatch(list(empty), list(listed), dict.fromkeys(names, empty), dict.fromkeys(names, listed))


def _without_probabilities(batch: Batch, rows: list[dict], strict: bool) -> dict[int, str]:
    """Return {index: reason} of samples whose probabilities are not finite.

    Raises:
        UserError: A sample has such probabilities, and the run is strict.
    """
    without = [index for index, row in enumerate(rows) if row["prediction"] is None]
    if without and strict:
        raise UserError(f"image {batch.ids[without[0]]}: {NO_PROBABILITIES}")
    return dict.fromkeys(without, NO_PROBABILITIES)


def _right_classes(question: RunQuestion, rows: list[dict]) -> np.ndarray | None:
    """Return the correct classes of each sample, Bool (B, K), or None if no labels are known."""
    right = [classes for classes in map(question.right, rows) if classes is not None]
    return np.stack(right) if right else None


def other_of(other: RunModel, samples: Samples, strict: bool) -> OtherModel:
    """Return the other network's predictions. In a strict run, raise UserError if a sample has none."""
    question, rows = other.question, samples.rows_of_other or []
    _without_probabilities(samples.batch, rows, strict)
    right = _right_classes(question, rows)
    assert right is not None
    blank = [0.0] * question.classes
    return OtherModel(
        classifier=other.classifier,
        logits=torch.tensor([row["logits"] or blank for row in rows]),
        labels=right,
        lacking=[
            _lacking(row, other.label_column, labelled=classes.any()) for row, classes in zip(rows, right, strict=True)
        ],
    )


def _lacking(row: dict, column: str, *, labelled: bool) -> str | None:
    """Return why the other model has no prediction or label for a sample, or None if it has both."""
    if row["prediction"] is None:
        return f"other model: {row['left_out'] if row['logits'] is None else NO_PROBABILITIES}"
    return None if labelled else lacks(column)


def target_texts(model: RunModel, cell: Cell, samples: Samples, terms: Sequence[TargetTerms]) -> list[str | None]:
    """Return each sample's target as a string for the records: the run's target, or one that the metric defines."""
    targets: Sequence[tuple[TargetTerms, ...]] = [(term,) for term in terms]
    if not cell.metric.asks_of_target:
        p = probabilities_of(model.classifier, torch.tensor([row["logits"] for row in samples.rows]))
        targets = cell.metric.questions(p, model.question.groups) or targets
    return [", ".join(term.text(model.class_names) for term in of_sample) or None for of_sample in targets]


def rows_of(
    samples: Samples, targets: Sequence[str | None], scores: ScoredBatch, explained: Explained
) -> Iterator[dict]:
    """Yield a row for each sample, followed by the rows of its parts.

    Args:
        samples: Samples of the batch.
        targets: Target of each sample, as text.
        scores: Scores of the samples.
        explained: Maps of the samples. Each score's row includes the values stored for its map.
    """
    for index, position in enumerate(samples.positions):
        of_sample: dict[str, object] = {POSITION: position, "target": targets[index]}
        of_map = explained.values_of(index)
        yield of_sample | of_map | {"part": None, "value": scores.values[index], "reason": scores.reasons[index]}
        for part, values in scores.parts.items():
            yield of_sample | {"part": part, "value": values[index], "reason": scores.part_reasons[part][index]}
