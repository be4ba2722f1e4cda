"""The work on a chunk: its samples explained by one explainer, and their maps scored by all its metrics.

`work` is a function of the networks, the samples and the seed; it reads and writes no file. What goes wrong with a
sample or a chunk becomes the reason in its records; a strict run stops instead.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from saliency_bench.engine.context import Cell, KeptMaps, RunContext
from saliency_bench.engine.precomputed import PrecomputedMaps
from saliency_bench.engine.probe import FIX, Probe, depends_on_batch
from saliency_bench.errors import UserError
from saliency_bench.explainer import Explainer
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
    """Explain samples of a chunk by one explainer and score their maps by all its cells; no file is touched.

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
    """
    explainer = outputs[0].explainer
    cells = [output for output in outputs if isinstance(output, Cell)]
    kept: list[np.ndarray | None] | None = [None] * len(positions)
    whole = len(positions) == len(chunk.rows)
    if not whole:
        chunk, predicted = chunk.part(positions), [predicted[position] for position in positions]
        by_other = by_other and [by_other[position] for position in positions]
    readable = [predicted[place] for place in chunk.readable]
    samples = [number * context.spec.batch_size + position for position in positions]
    terms = [_terms(context, samples[place], predicted[place]) for place in chunk.readable]
    passes: dict[str, int] = {}
    scored: dict[str, ScoredBatch] = {}
    thumbnails: Thumbnails | None = None
    halved, raised, halved_passes = 0, False, _halved(context)
    if chunk.batch is not None:
        target = stack(terms, len(readable[0]["logits"])).to(chunk.batch.images.device)
        faults = _without_probabilities(context, chunk.batch, readable)
        before = context.classifier.passes
        maps, reasons, halved = _maps(context, chunk.batch, explainer, target)
        passes["explain"] = context.classifier.passes - before
        if maps is None:
            raised, kept = True, None
            scored = {cell.id: _unscored(context, cell, reasons) for cell in cells}
        else:
            if len(cells) < len(outputs):
                kept = _kept(maps, reasons, chunk, len(positions))
            thumbnails = Thumbnails(maps.cpu().clone(), [positions[place] for place in chunk.readable])
            inputs = _inputs(context, chunk.batch, target, maps, explainer, readable, faults)
            inputs.map_faults = reasons
            if context.other is not None and by_other is not None:
                inputs.other = _of_other(context.other, chunk.batch, [by_other[place] for place in chunk.readable])
            _add_of_run(context, inputs, cells, [samples[place] for place in chunk.readable])
            for cell in cells:
                before = context.classifier.passes
                scored[cell.id] = _scores(context, inputs, cell, chunk.batch)
                passes[cell.id] = context.classifier.passes - before
            halved, raised = halved + inputs.halved, any(scores.raised for scores in scored.values())
            if number == 0 and whole and _depends_on_batch(context, chunk.batch, explainer, target, maps):
                for scores in scored.values():
                    scores.mark(DEPENDS_ON_BATCH)
        if _set_back(probes, explainer, context.spec.strict):
            kept, thumbnails = None, None
            reasons = dict.fromkeys(range(len(readable)), CHANGES_NETWORK)
            scored = {cell.id: _unscored(context, cell, reasons) for cell in cells}
    if halved := halved + _halved(context) - halved_passes:
        for scores in scored.values():
            scores.mark(HALVED)
    own: list[tuple[TargetTerms, ...]] = [(term,) for term in terms]
    rows = {
        cell.id: list(_rows(context, cell, chunk, samples, _asked(context, cell, readable, own), scored.get(cell.id)))
        for cell in cells
    }
    tables = {key: pa.Table.from_pylist(of_cell, schema=records.STORED) for key, of_cell in rows.items()}
    faulty = sum(map(_is_fault, chain.from_iterable(rows.values())))
    about = {"passes": passes, "halved": halved, "faults": faulty, "raised": raised}

    kept_maps = {
        output.id: table_of(samples, [row["image_id"] for row in predicted], kept)
        for output in outputs
        if isinstance(output, KeptMaps) and kept is not None
    }
    return ChunkResult(
        explainer_id=hash_of(explainer.identity),
        number=number,
        positions=None if whole else tuple(positions),
        scores=tables,
        about=about,
        maps=kept_maps,
        thumbnails=thumbnails,
    )


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


def _depends_on_batch(context: RunContext, batch: Batch, explainer: Explainer, target: Target, maps: Maps) -> bool:
    """Return whether samples get other maps when the batch holds fewer others; once per explainer."""
    if explainer.baseline or isinstance(explainer.function, PrecomputedMaps):
        return False
    passes, halved = context.classifier.passes, context.classifier.halved
    seeds = [_seed(context, batch, index, "explain") for index in range(len(batch))]

    def explain(part: slice) -> Maps:
        own = target if len(target) == 1 else target[part]
        return explainer.seeded(context.spec.seed)(context.classifier, batch.images[part], own, seeds=seeds[part])

    try:
        return depends_on_batch(explain, maps)
    except (UserError, RuntimeError, MemoryError):  # too small a batch for it, or no memory: nothing is known
        return False
    finally:
        context.classifier.passes, context.classifier.halved = passes, halved


def _is_fault(row: dict) -> bool:
    """Whether a row says that a sample has no score where it should have one."""
    return row["part"] is None and row["value"] is None and not is_expected(row["reason"])


def _kept(maps: Maps, reasons: Collection[int], chunk: Chunk, count: int) -> list[np.ndarray | None]:
    """A map per sample of a chunk; None where it could not be read, or its map is no map."""
    found: list[np.ndarray | None] = [None] * count
    for index, (place, values) in enumerate(zip(chunk.readable, maps.cpu().numpy().copy(), strict=True)):
        if index not in reasons:
            found[place] = values
    return found


def _terms(context: RunContext, position: int, row: dict) -> TargetTerms:
    """The target of a sample. One that the limit cuts off may have none; its chunk is whole for the others' sake."""
    logits = np.asarray(row["logits"])
    if position >= context.samples and not context.rule.has_target(row["image_id"], row["label"], context.members):
        return TargetTerms((int(np.argmax(logits)),))
    return context.rule.terms(row["image_id"], row["label"], logits, context.members)


def _asked(
    context: RunContext, cell: Cell, readable: list[dict], own: list[tuple[TargetTerms, ...]]
) -> Sequence[tuple[TargetTerms, ...]]:
    """Per sample the targets that a cell's metric asks about: the run's own, or those of the metric's own question."""
    if cell.metric.asks_of_target or not readable:
        return own
    logits = torch.tensor([row["logits"] for row in readable]).double()
    p = probabilities(logits, context.classifier.activation).numpy()
    p[no_probabilities(logits, context.classifier.activation)] = np.nan
    return cell.metric.questions(p, context.groups) or [()] * len(readable)


def _right(context: RunContext, readable: list[dict]) -> np.ndarray | None:
    """Bool (B, K): the classes that are right for each sample; None where no labels are known."""
    rows = [row for row in map(context.right, readable) if row is not None]
    return np.stack(rows) if rows else None


def _of_other(context: RunContext, batch: Batch, rows: list[dict]) -> Other:
    """What the other model says of samples. context: the run of the other model."""
    _without_probabilities(context, batch, rows)
    right = _right(context, rows)
    assert right is not None
    blank = [0.0] * context.classes
    return Other(
        classifier=context.classifier,
        target=torch.from_numpy(right).float().to(context.classifier.device),
        logits=torch.tensor([row["logits"] or blank for row in rows]),
        labels=right,
        lacking=[_lacking(context, row, own.any()) for row, own in zip(rows, right, strict=True)],
    )


def _lacking(context: RunContext, row: dict, labelled: bool) -> str | None:
    """Why the other model has nothing to say of a sample."""
    if row["prediction"] is None:
        return f"other model: {row['left_out'] if row['logits'] is None else NO_PROBABILITIES}"
    return None if labelled else lacks(context.spec.label_column)


def _halved(context: RunContext) -> int:
    """How often passes were halved."""
    return sum(one.classifier.halved for one in context.of_both)


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
            raise UserError(f"{explainer}, {_called(batch)}: {reason}") from error
        return None, dict.fromkeys(range(len(batch)), reason), 0
    bad = not_finite(maps)
    reason = getattr(explainer.function, "not_finite", NOT_FINITE)
    if bad and context.spec.strict:
        raise UserError(f"{explainer}, image {batch.ids[bad[0]]}: {reason}")
    return maps.nan_to_num(0, 0, 0) if bad else maps, dict.fromkeys(bad, reason), halved


def _called(batch: Batch) -> str:
    """The images of a batch for messages; their order is that of the run, so that no range of ids names them."""
    first, *rest = batch.ids
    return f"images {first} ... {rest[-1]} ({len(batch)} images)" if rest else f"image {first}"


def _seed(context: RunContext, batch: Batch, index: int, purpose: str) -> int:
    return seed_of(context.spec.seed, batch.ids[index], purpose)


def _inputs(
    context: RunContext, batch: Batch, target: Target, maps: Maps, explainer: Explainer, rows: list[dict],
    faults: dict[int, str],
) -> MetricInputs:  # fmt: skip
    """What metrics ask for of a batch, its maps, and what the classifier says of it."""
    return MetricInputs(
        classifier=context.classifier,
        explainer=explainer.seeded(context.spec.seed),
        images=batch.images,
        target=target,
        logits=torch.tensor([row["logits"] for row in rows]),
        labels=_right(context, rows),
        seed_for=partial(_seed, context, batch),
        maps=maps,
        masks=batch.masks.numpy(),
        unusable=batch.left_out,
        groups=context.groups,
        faults=faults,
        columns=batch.columns,
        run_seed=context.spec.seed,
    )


def _add_of_run(context: RunContext, inputs: MetricInputs, cells: list[Cell], places: list[int]) -> None:
    """What metrics ask for that depends on other samples. places: of the batch's samples in the run's order."""
    inputs.partners = PartnerSource(context.plans, places, context.partners, context.spec.batch_size)
    retraining = [cell for cell in cells if cell.metric.keeps]
    inputs.retrained = {cell.metric: context.retrained[cell.id][places] for cell in retraining}


def _scores(context: RunContext, inputs: MetricInputs, cell: Cell, batch: Batch) -> ScoredBatch:
    scores = inputs.score(cell.metric)
    if scores.faulty and context.spec.strict:
        first, reason = min(scores.faulty.items())
        images = _called(batch) if scores.raised else f"image {batch.ids[first]}"
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
    samples: Sequence[int],
    terms: Sequence[tuple[TargetTerms, ...]],
    scores: ScoredBatch | None,
) -> Iterator[dict]:
    """A row per sample of the chunk, also of those that could not be read, each followed by those of its parts.

    samples: their positions in the run.
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
