"""The work on a chunk: its samples explained by one explainer, and their maps scored by all its metrics.

`work` is a function of the networks, the samples and the seed; it reads and writes no file. What goes wrong with a
sample or a chunk becomes the reason in its records; a strict run stops instead.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from saliency_bench.bound_explainer import Explainer
from saliency_bench.engine.context import Cell, KeptMaps, RunContext
from saliency_bench.engine.precomputed import PrecomputedMaps
from saliency_bench.engine.probe import FIX, Probe, depends_on_batch
from saliency_bench.errors import UserError
from saliency_bench.map_sources.map_provider import halving, not_finite, reason_of
from saliency_bench.map_sources.stored_maps import table_of
from saliency_bench.reasons import (
    CHANGES_NETWORK,
    DEPENDS_ON_BATCH,
    HALVED,
    NO_PROBABILITIES,
    NOT_FINITE,
    is_expected,
    lacks,
)
from saliency_bench.results import records
from saliency_bench.results.parts import POSITION
from saliency_bench.scoring.inputs import MetricInputs, Other, ScoredBatch, Value
from saliency_bench.scoring.partners import PartnerSource
from saliency_bench.target_weights import no_probabilities, probabilities
from saliency_bench.targets.rules import stack
from saliency_bench.targets.terms import TargetTerms
from saliency_bench.types import Batch, Chunk, Maps, Target
from saliency_bench.utils.hashing import hash_of
from saliency_bench.utils.seeds import seed_of

Output = Cell | KeptMaps


@dataclass(frozen=True)
class Thumbnails:
    """Maps that the report may show.

    Attributes:
        maps: (n, H, W), on the CPU.
        positions: of their samples in the chunk.
    """

    maps: Maps
    positions: list[int]


@dataclass(frozen=True)
class ChunkResult:
    """What one explainer and its metrics give for samples of a chunk.

    Attributes:
        explainer_id: hash of the explainer's identity.
        number: of the chunk.
        positions: of the samples in the chunk; None: all.
        scores: {cell id: rows of `records.STORED`}.
        about: forward passes, halved batches, faults, and whether something raised.
        maps: {id of the kept maps: their rows}; {} for a run that keeps none.
        thumbnails: maps for pictures; None where there are none.
    """

    explainer_id: str
    number: int
    positions: tuple[int, ...] | None
    scores: dict[str, pa.Table]
    about: dict[str, Any]
    maps: dict[str, pa.Table] = field(default_factory=dict)
    thumbnails: Thumbnails | None = None


def work(
    context: RunContext,
    number: int,
    chunk: Chunk,
    predicted: list[dict],
    positions: Sequence[int],
    outputs: list[Output],
    by_other: list[dict] | None = None,
    probes: Sequence[Probe] = (),
) -> ChunkResult:
    """Explain samples of a chunk by one explainer and score their maps by all its cells; touch no file.

    Args:
        context: what the run works on.
        number: of the chunk.
        chunk: its samples.
        predicted: what the classifier says of each of them.
        positions: of the samples in the chunk that are explained.
        outputs: the cells, and the kept maps, of one explainer.
        by_other: what the other model says of each sample.
        probes: of the networks; where one finds another network than at the start of the run, it is set back, and the
            scores of the chunk are not believed.

    Raises:
        UserError: What holds for every chunk, such as an explainer that the network does not fit; in a strict run also
            what is wrong with a sample.
    """
    whole = len(positions) == len(chunk.rows)
    if not whole:
        chunk, predicted = chunk.part(positions), [predicted[position] for position in positions]
        by_other = by_other and [by_other[position] for position in positions]
    explainer = outputs[0].explainer
    cells = [output for output in outputs if isinstance(output, Cell)]
    in_run = [number * context.spec.batch_size + position for position in positions]
    readable = [predicted[place] for place in chunk.readable]
    terms = [_terms(context, in_run[place], predicted[place]) for place in chunk.readable]
    outcome, halved_before = _Outcome(), _halved(context)
    if chunk.batch is not None:
        batch = chunk.batch
        target = stack(terms, len(readable[0]["logits"])).to(batch.images.device)
        places = [in_run[place] for place in chunk.readable]
        others = None if by_other is None else [by_other[place] for place in chunk.readable]
        outcome = _explained(context, batch, explainer, target)
        _score(context, outcome, batch, explainer, target, cells, readable, others, places)
        # One chunk shows it: what is asked is whether the method mixes samples, not how much.
        if number == 0 and whole and _depends_on_batch(context, batch, explainer, target, outcome.maps):
            outcome.mark(DEPENDS_ON_BATCH)
        # The change happened at some sample of this chunk, and it is not known which: none of its scores is believed.
        if _set_back(probes, explainer, context.spec.strict):
            outcome.maps = None
            outcome.leave_out(context, cells, dict.fromkeys(range(len(batch)), CHANGES_NETWORK))
    if halved := outcome.halved + _halved(context) - halved_before:
        outcome.mark(HALVED)
    run_target: list[tuple[TargetTerms, ...]] = [(term,) for term in terms]
    rows = {}
    for cell in cells:
        questions = _questions(context, cell, readable, run_target)
        rows[cell.id] = list(_rows(context, cell, chunk, in_run, questions, outcome.scores.get(cell.id)))
    faults = sum(map(_is_fault, chain.from_iterable(rows.values())))
    ids = [row["image_id"] for row in predicted]
    kept = {output.id: _kept(outcome, chunk, in_run, ids) for output in outputs if isinstance(output, KeptMaps)}
    shown = outcome.maps
    return ChunkResult(
        explainer_id=hash_of(explainer.identity),
        number=number,
        positions=None if whole else tuple(positions),
        scores={key: pa.Table.from_pylist(of_cell, schema=records.STORED) for key, of_cell in rows.items()},
        about={"passes": outcome.passes, "halved": halved, "faults": faults, "raised": outcome.raised},
        maps={key: table for key, table in kept.items() if table is not None},
        thumbnails=None
        if shown is None
        else Thumbnails(shown.cpu().clone(), [positions[place] for place in chunk.readable]),
    )


@dataclass
class _Outcome:
    """Maps and scores of the readable samples of a chunk, as they come about.

    Attributes:
        maps: (B, H, W), zeros where a map is not finite; None if there are none to be believed.
        map_faults: {index in the batch: what is wrong with its map}.
        scores: {cell id: its scores}.
        passes: {"explain" or cell id: images that went through the classifier}.
        halved: how often a batch was halved because it did not fit in memory.
        raised: whether the explainer raised, which may have been a temporary failure.
    """

    maps: Maps | None = None
    map_faults: dict[int, str] = field(default_factory=dict)
    scores: dict[str, ScoredBatch] = field(default_factory=dict)
    passes: dict[str, int] = field(default_factory=dict)
    halved: int = 0
    raised: bool = False

    def mark(self, reason: str) -> None:
        """Note beside all scores what must be known about them."""
        for scores in self.scores.values():
            scores.mark(reason)

    def leave_out(self, context: RunContext, cells: Sequence[Cell], reasons: dict[int, str]) -> None:
        """Replace all scores by the reason why each sample has none."""
        listed: list[str | None] = [reasons[index] for index in range(len(reasons))]
        empty: list[Value] = [None] * len(listed)
        for cell in cells:
            names = cell.metric.parts(context.classifier)
            self.scores[cell.id] = ScoredBatch(
                list(empty), list(listed), dict.fromkeys(names, empty), dict.fromkeys(names, listed)
            )


def _explained(context: RunContext, batch: Batch, explainer: Explainer, target: Target) -> _Outcome:
    """Return the maps of a batch; none if the explainer raised.

    Raises:
        UserError: A refusal by name, which holds for every chunk; in a strict run whatever is wrong.
    """
    seeds = [_seed(context, batch, index, "explain") for index in range(len(batch))]
    before = context.classifier.passes
    try:
        maps, halved = halving(explainer.seeded(context.spec.seed), context.classifier, batch.images, target, seeds)
    except UserError:
        raise
    except Exception as error:
        reason = reason_of(error)
        if context.spec.strict:
            raise UserError(f"{explainer}, {_images_text(batch)}: {reason}") from error
        passes = {"explain": context.classifier.passes - before}
        return _Outcome(None, dict.fromkeys(range(len(batch)), reason), passes=passes, raised=True)
    bad = not_finite(maps)
    reason = getattr(explainer.function, "not_finite", NOT_FINITE)
    if bad and context.spec.strict:
        raise UserError(f"{explainer}, image {batch.ids[bad[0]]}: {reason}")
    return _Outcome(
        maps.nan_to_num(0, 0, 0) if bad else maps,
        dict.fromkeys(bad, reason),
        passes={"explain": context.classifier.passes - before},
        halved=halved,
    )


def _score(
    context: RunContext,
    outcome: _Outcome,
    batch: Batch,
    explainer: Explainer,
    target: Target,
    cells: Sequence[Cell],
    readable: list[dict],
    by_other: list[dict] | None,
    places: list[int],
) -> None:
    """Add the scores of all cells to the maps of a batch.

    Args:
        context: what the run works on.
        outcome: the maps, to which scores are added.
        batch: the samples that could be read.
        explainer: for metrics that ask for further maps.
        target: (B, K), of the maps.
        cells: of the explainer.
        readable: what the classifier says of each sample.
        by_other: what the other model says of each sample.
        places: of the samples in the run's order.
    """
    faults = _without_probabilities(context, batch, readable)
    if outcome.maps is None:
        outcome.leave_out(context, cells, outcome.map_faults)
        return
    inputs = MetricInputs(
        classifier=context.classifier,
        explainer=explainer.seeded(context.spec.seed),
        images=batch.images,
        target=target,
        logits=torch.tensor([row["logits"] for row in readable]),
        labels=_right_classes(context, readable),
        seed_for=partial(_seed, context, batch),
        maps=outcome.maps,
        masks=batch.masks.numpy(),
        unusable=batch.left_out,
        groups=context.question.groups,
        faults=faults,
        map_faults=outcome.map_faults,
        columns=batch.columns,
        run_seed=context.spec.seed,
        other=None if context.other is None or by_other is None else _other(context.other, batch, by_other),
        partners=PartnerSource(context.plans, places, context.partners, context.spec.batch_size),
        retrained={
            cell.metric: context.retraining.classes[cell.id][places] for cell in cells if cell.metric.declaration.keeps
        },
    )
    for cell in cells:
        before = context.classifier.passes
        scores = outcome.scores[cell.id] = inputs.score(cell.metric)
        outcome.passes[cell.id] = context.classifier.passes - before
        outcome.raised |= scores.raised
        if scores.faulty and context.spec.strict:
            first, reason = min(scores.faulty.items())
            images = _images_text(batch) if scores.raised else f"image {batch.ids[first]}"
            raise UserError(f"{cell.explainer} for {cell.metric}, {images}: {reason}")
    outcome.halved += inputs.halved


def _set_back(probes: Sequence[Probe], explainer: Explainer, strict: bool) -> bool:
    """Return whether an explainer or one of its metrics has changed a network; each is then as at the start again.

    Raises:
        UserError: The run is strict, or a network cannot be set back.
    """
    changed = [probe for probe in probes if probe.differs()]
    for probe in changed:
        if strict:
            raise UserError(f"{explainer}, or one of its metrics, {CHANGES_NETWORK} {probe.classifier.id}; {FIX}")
        probe.restore(f"{explainer}, or one of its metrics,")
    return bool(changed)


def _depends_on_batch(
    context: RunContext, batch: Batch, explainer: Explainer, target: Target, maps: Maps | None
) -> bool:
    """Return whether samples get other maps when the batch holds fewer others."""
    if maps is None or explainer.baseline or isinstance(explainer.function, PrecomputedMaps):
        return False
    passes, halved = context.classifier.passes, context.classifier.halved
    seeds = [_seed(context, batch, index, "explain") for index in range(len(batch))]

    def explain(part: slice) -> Maps:
        of_part = target if len(target) == 1 else target[part]
        return explainer.seeded(context.spec.seed)(context.classifier, batch.images[part], of_part, seeds=seeds[part])

    try:
        return depends_on_batch(explain, maps)
    except Exception:  # what an explainer raises for fewer images says nothing about its maps
        return False
    finally:
        context.classifier.passes, context.classifier.halved = passes, halved


def _is_fault(row: dict) -> bool:
    """Return whether a row says that a sample has no score where it should have one."""
    return row["part"] is None and row["value"] is None and not is_expected(row["reason"])


def _kept(outcome: _Outcome, chunk: Chunk, in_run: Sequence[int], ids: Sequence[str]) -> pa.Table | None:
    """Return a row per sample with its map, null where it could not be read or has none; None without any maps.

    A chunk of which nothing could be read has rows without maps, so that it is not asked for again.
    """
    if outcome.maps is None and chunk.batch is not None:
        return None
    maps: list[np.ndarray | None] = [None] * len(in_run)
    if outcome.maps is not None:
        for index, (place, values) in enumerate(zip(chunk.readable, outcome.maps.cpu().numpy().copy(), strict=True)):
            if index not in outcome.map_faults:
                maps[place] = values
    return table_of(in_run, ids, maps)


def _terms(context: RunContext, position: int, row: dict) -> TargetTerms:
    """Return the target of a sample.

    One that the limit cuts off may have none, and gets its predicted class: its chunk is computed whole, so that the
    maps of the others do not depend on the limit.
    """
    logits = np.asarray(row["logits"])
    if position >= context.data.count and not context.question.has_target(row):
        return TargetTerms((int(np.argmax(logits)),))
    return context.question.target_of(row, logits)


def _questions(
    context: RunContext, cell: Cell, readable: list[dict], run_target: list[tuple[TargetTerms, ...]]
) -> Sequence[tuple[TargetTerms, ...]]:
    """Return per sample the targets a cell's metric asks about: the run's, or those of the metric's own question."""
    if cell.metric.asks_of_target or not readable:
        return run_target
    logits = torch.tensor([row["logits"] for row in readable]).double()
    p = probabilities(logits, context.classifier.activation).numpy()
    p[no_probabilities(logits, context.classifier.activation)] = np.nan
    return cell.metric.questions(p, context.question.groups) or [()] * len(readable)


def _right_classes(context: RunContext, readable: list[dict]) -> np.ndarray | None:
    """Return Bool (B, K), the classes that are right for each sample; None where no labels are known."""
    rows = [row for row in map(context.question.right, readable) if row is not None]
    return np.stack(rows) if rows else None


def _other(context: RunContext, batch: Batch, rows: list[dict]) -> Other:
    """Return what the other model says of samples; `context` is the run of the other model."""
    _without_probabilities(context, batch, rows)
    right = _right_classes(context, rows)
    assert right is not None
    blank = [0.0] * context.question.classes
    return Other(
        classifier=context.classifier,
        target=torch.from_numpy(right).float().to(context.classifier.device),
        logits=torch.tensor([row["logits"] or blank for row in rows]),
        labels=right,
        lacking=[_lacking(context, row, classes.any()) for row, classes in zip(rows, right, strict=True)],
    )


def _lacking(context: RunContext, row: dict, labelled: bool) -> str | None:
    """Return why the other model has nothing to say of a sample, else None."""
    if row["prediction"] is None:
        return f"other model: {row['left_out'] if row['logits'] is None else NO_PROBABILITIES}"
    return None if labelled else lacks(context.spec.label_column)


def _halved(context: RunContext) -> int:
    """Return how often passes of the networks were halved so far."""
    return sum(run.classifier.halved for run in context.of_both)


def _without_probabilities(context: RunContext, batch: Batch, readable: list[dict]) -> dict[int, str]:
    """Return {index: reason} of samples whose probabilities are not finite.

    Raises:
        UserError: There is such a sample, and the run is strict.
    """
    without = [index for index, row in enumerate(readable) if row["prediction"] is None]
    if without and context.spec.strict:
        raise UserError(f"image {batch.ids[without[0]]}: {NO_PROBABILITIES}")
    return dict.fromkeys(without, NO_PROBABILITIES)


def _images_text(batch: Batch) -> str:
    """Name the images of a batch in a message; their order is that of the run, so that no range of ids names them."""
    first, *rest = batch.ids
    return f"images {first} ... {rest[-1]} ({len(batch)} images)" if rest else f"image {first}"


def _seed(context: RunContext, batch: Batch, index: int, purpose: str) -> int:
    """Return the seed of a sample for a purpose, which does not depend on its batch."""
    return seed_of(context.spec.seed, batch.ids[index], purpose)


def _rows(
    context: RunContext,
    cell: Cell,
    chunk: Chunk,
    samples: Sequence[int],
    terms: Sequence[tuple[TargetTerms, ...]],
    scores: ScoredBatch | None,
) -> Iterator[dict]:
    """Yield a row per sample of the chunk, also of those that could not be read, each followed by rows of its parts.

    Args:
        context: what the run works on.
        cell: the explainer and metric.
        chunk: the samples.
        samples: their positions in the run.
        terms: the targets of those that could be read.
        scores: of those that could be read; None if there are none.
    """
    classes = context.classifier.labels
    index_of = {place: index for index, place in enumerate(chunk.readable)}
    parts = cell.metric.parts(context.classifier)
    for place, sample in enumerate(samples):
        index = index_of.get(place)
        target = None if index is None else ", ".join(term.text(classes) for term in terms[index]) or None
        of_sample: dict[str, object] = {POSITION: sample, "target": target}
        if index is None or scores is None:
            unread: dict[str, object] = {"value": None, "reason": chunk.faults[place]}
            yield from (of_sample | {"part": part} | unread for part in (None, *parts))
            continue
        yield of_sample | {"part": None, "value": scores.values[index], "reason": scores.reasons[index]}
        for part in parts:
            value, reason = scores.parts[part][index], scores.part_reasons[part][index]
            yield of_sample | {"part": part, "value": value, "reason": reason}
