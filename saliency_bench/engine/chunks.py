"""The unit of work: a chunk of samples, explained by one explainer and scored by all its metrics, in one file.

What goes wrong with a sample or a chunk becomes the reason in its records; a strict run stops instead.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from itertools import chain

import numpy as np
import pyarrow as pa
import torch

from saliency_bench.engine.context import Cell, KeptMaps, RunContext
from saliency_bench.engine.examples import compact_thumbnails, save_thumbnails, thumbnail_strays
from saliency_bench.engine.precomputed import PrecomputedMaps
from saliency_bench.engine.predictions import predicted_chunks, prediction_parts, wanted
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
from saliency_bench.results.cell import CellKey
from saliency_bench.results.parts import (
    POSITION,
    Entry,
    Part,
    PartFolder,
    chunks_of,
    files_in,
    held,
    maps_of,
    name_ignored,
)
from saliency_bench.results.summary import summarised_names
from saliency_bench.scoring.inputs import MetricInputs, Other, ScoredBatch, Value
from saliency_bench.scoring.partners import PartnerSource
from saliency_bench.target_weights import no_probabilities, probabilities
from saliency_bench.targets.rules import stack
from saliency_bench.targets.terms import TargetTerms
from saliency_bench.types import Batch, Chunk, Maps, Target
from saliency_bench.utils.hashing import hash_of
from saliency_bench.utils.messages import complain
from saliency_bench.utils.seeds import seed_of

UNSHOWN = 10  # cells that are listed
Output = Cell | KeptMaps
Held = dict[str, list[int]]  # {cell, or maps that are kept: the positions in a chunk that files hold}


def by_explainer(outputs: Iterable[Output]) -> dict[Explainer, list[Output]]:
    found: dict[Explainer, list[Output]] = {}
    for output in outputs:
        found.setdefault(output.explainer, []).append(output)
    return found


def parts_of(context: RunContext, explainer_id: str) -> PartFolder:
    return chunks_of(context.out, explainer_id, context.run_id, context.spec.batch_size)


def map_parts(context: RunContext, explainer_id: str) -> PartFolder:
    return maps_of(context.out, explainer_id, context.run_id, context.spec.batch_size)


def planned(context: RunContext, plan: dict[str, CellKey]) -> list[tuple[int, Held]]:
    """The chunks of which something is missing, each with the outputs of which it is and the positions that files hold.

    Only the main process, under the lock. Before predictions of a chunk are there, all its samples are taken to be
    explained. plan: the cells of all starts.
    """
    tidy(context, plan)
    known, *others = [predicted_chunks(prediction_parts(one).parts()) for one in context.of_both]
    chosen = wanted(context, known)
    todo: dict[int, Held] = {
        number: {} for number in context.chunks if any(number not in one for one in (known, *others))
    }
    for explainer, own in by_explainer(context.outputs).items():
        folders = (folder(context, hash_of(explainer.identity)) for folder in (parts_of, map_parts))
        parts = [part for folder in folders for part in folder.parts()]
        found = held(parts, [output.id for output in own], *chosen.shape)
        for key, there in found.items():
            for number in np.flatnonzero((chosen & ~there).any(axis=1)).tolist():
                todo.setdefault(number, {})[key] = np.flatnonzero(there[number]).tolist()
    return sorted(todo.items())


def tidy(context: RunContext, plan: dict[str, CellKey]) -> None:
    """Leave few files, all of them whole; what is no part of the run is named once and stays.

    Of the run's own explainers, a chunk where one raised is dropped, which may have been a temporary failure; and any
    with a fault, if the run is strict.
    """

    def redo(entry: Entry) -> bool:
        return bool(entry.about["raised"] or (context.spec.strict and entry.about["faults"]))

    own = {hash_of(explainer.identity) for explainer in context.explainers}
    explainers = list(dict.fromkeys(key.explainer_id for key in plan.values()))
    for predictions in map(prediction_parts, context.of_both):
        name_ignored(predictions.path, predictions.strays())
        predictions.check()
    unnamed = _of_unnamed(context, explainers)
    for above in (context.out / "chunks", context.out / "maps", context.out / "thumbnails"):
        name_ignored(above, sorted({path.name for path in files_in(above)} - set(explainers) - unnamed.keys()))
    for explainer_id in explainers:
        folder, thumbnails = parts_of(context, explainer_id), context.out / "thumbnails" / explainer_id
        name_ignored(folder.path, folder.strays())
        name_ignored(thumbnails, thumbnail_strays(thumbnails))
        unnamed[explainer_id] = folder.check(*[redo] * (explainer_id in own))
        name_ignored(map_parts(context, explainer_id).path, map_parts(context, explainer_id).strays())
        map_parts(context, explainer_id).check()
    _name_unshown(context, {key for parts in unnamed.values() for part in parts for key in part.groups}, plan)
    compact(context, explainers)


def _of_unnamed(context: RunContext, explainers: Collection[str]) -> dict[str, list[Part]]:
    """{explainer: its parts} of this run, of explainers that no start names whose cells `run.json` still has."""
    others = [path.name for path in files_in(context.out / "chunks") if path.is_dir() and path.name not in explainers]
    found = {explainer_id: parts_of(context, explainer_id).parts() for explainer_id in sorted(others)}
    return {explainer_id: parts for explainer_id, parts in found.items() if parts}


def _name_unshown(context: RunContext, cells: Collection[str], plan: dict[str, CellKey]) -> None:
    """One line about cells that an earlier start has computed and no start names, as after the loss of run.json.

    Those that were computed anew with other partners are named by the table.
    """
    names = summarised_names(context.out)
    shown = {f"{key.explainer_text} by {key.metric_text}" for key in plan.values()}
    listed = sorted({names.get(cell, f"cell {cell}") for cell in cells if cell not in plan} - shown)
    if not listed:
        return
    more = f" and {len(listed) - UNSHOWN} more" if len(listed) > UNSHOWN else ""
    complain(
        f"{context.out} also holds cells that are not in the table of this start: {', '.join(listed[:UNSHOWN])}{more}; "
        "name their explainers and metrics again to show them"
    )


def compact(context: RunContext, explainers: Iterable[str], *, full: bool = False) -> None:
    """Few files in the place of many, of these explainers and, unless only full ones are wanted, of the predictions.

    Only the main process. full: only spans of chunks that are complete, as other processes may be writing.
    """
    if not full:
        for one in context.of_both:
            prediction_parts(one).compact()
    for explainer_id in explainers:
        parts_of(context, explainer_id).compact(full=full)
        map_parts(context, explainer_id).compact(full=full)
        compact_thumbnails(context.out / "thumbnails" / explainer_id, context.spec.batch_size, full=full)


def missing(
    chosen: Sequence[int], outputs: list[Output], held: Mapping[str, Collection[int]]
) -> dict[tuple[int, ...], list[Output]]:
    """{positions of samples in a chunk: the outputs that no file holds of them}

    chosen: the positions that are explained. held: {output: those that files hold}.
    """
    found: dict[tuple[int, ...], list[Output]] = {}
    for output in outputs:
        if still := tuple(position for position in chosen if position not in held.get(output.id, ())):
            found.setdefault(still, []).append(output)
    return found


def explain_and_score(
    context: RunContext,
    number: int,
    chunk: Chunk,
    predicted: list[dict],
    positions: Sequence[int],
    outputs: list[Output],
    by_other: list[dict] | None = None,
    probes: Sequence[Probe] = (),
) -> Callable[[], None]:
    """Explain the samples at these positions of a chunk, score their maps by all cells; returns what writes the files.

    outputs: of one explainer. by_other: what the other model says of the chunk. probes: of the networks; where one
    finds another network than at the start of the run, it is set back, and the scores of the chunk are not believed.
    """
    explainer = outputs[0].explainer
    cells = [output for output in outputs if isinstance(output, Cell)]
    kept: list[np.ndarray | None] | None = [None] * len(positions)
    folder = parts_of(context, hash_of(explainer.identity))
    whole = len(positions) == len(chunk.rows)
    if not whole:
        chunk, predicted = chunk.part(positions), [predicted[position] for position in positions]
        by_other = by_other and [by_other[position] for position in positions]
    readable = [predicted[place] for place in chunk.readable]
    samples = [number * context.spec.batch_size + position for position in positions]
    terms = [_terms(context, samples[place], predicted[place]) for place in chunk.readable]
    passes: dict[str, int] = {}
    scored: dict[str, ScoredBatch] = {}
    thumbnails: Callable[[], None] | None = None
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
            places = [positions[place] for place in chunk.readable]
            if len(cells) < len(outputs):
                kept = _kept(maps, reasons, chunk, len(positions))
            pictures = context.out / "thumbnails" / folder.path.name
            thumbnails = partial(save_thumbnails, pictures, number, maps.cpu().clone(), places, context.spec.batch_size)
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

    def write() -> None:
        if thumbnails is not None:
            thumbnails()
        own = None if whole else positions
        for output in outputs:
            if isinstance(output, KeptMaps) and kept is not None:
                rows_of_maps = table_of(samples, [row["image_id"] for row in predicted], kept)
                map_parts(context, folder.path.name).write(number, {output.id: rows_of_maps}, own)
        if cells:
            folder.write(number, tables, own, **about)

    return write


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


class Behind:
    """Work that only the host does, piece after piece in a thread, while the next is computed.

    An error of a piece is raised by the next call, or at the end; then no further piece is done.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1)
        self._last: Future[None] | None = None

    def put(self, piece: Callable[[], None]) -> None:
        """Only one piece is there at a time: what it holds is little."""
        self.wait()
        self._last = self._thread.submit(piece)

    def wait(self) -> None:
        if self._last is not None:
            self._last.result()

    def __enter__(self) -> "Behind":
        return self

    def __exit__(self, kind: type | None, *_: object) -> None:
        with self._thread:
            if kind is None:
                self.wait()
