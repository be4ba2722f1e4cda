"""Explain the samples of a batch with one explainer, and score the maps with the metrics of this explainer's cells.

`work` is a function of the networks, the samples and the seed. It writes no files. The only files that it reads are
images of other samples that a metric needs (partners). If a sample or a batch fails, the error is recorded as the
reason for the missing scores. A strict run stops instead.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from saliency_bench.bound_explainer import Explainer
from saliency_bench.compute.cells import Cell, KeptMaps, Output
from saliency_bench.compute.examples import thumbnail_rows
from saliency_bench.compute.explain import Explained, depends_on_batch, explain
from saliency_bench.compute.loaded import RunModel, RunQuestion
from saliency_bench.compute.loading.table import SplitTable
from saliency_bench.compute.probe import FIX, Probe
from saliency_bench.compute.score import Scores, left_out, rows_of, score, target_texts
from saliency_bench.compute.targets.rules import stack
from saliency_bench.compute.targets.terms import TargetTerms
from saliency_bench.errors import UserError
from saliency_bench.read import records
from saliency_bench.read.stored_maps import table_of
from saliency_bench.score_notes import CHANGES_NETWORK, DEPENDS_ON_BATCH, HALVED, INFINITE_LOGIT, is_expected
from saliency_bench.target_weights import weighs_infinite
from saliency_bench.types import Samples, Target
from saliency_bench.utils.hashing import hash_of


@dataclass(frozen=True)
class BatchResult:
    """Results of one explainer and its metrics for the samples of a batch.

    Attributes:
        explainer_id: Hash of the explainer's identity.
        positions: Positions of the samples in the run.
        scores: {cell id: rows of `records.STORED`}.
        about: The numbers of forward passes, halved batches and errors, and whether an explainer or metric raised an
            error.
        maps: {id of the stored maps: rows}; {} for a run that stores no maps.
        thumbnails: Rows of `examples.THUMBNAILS`; None if there are no maps.
    """

    explainer_id: str
    positions: list[int]
    scores: dict[str, pa.Table]
    about: dict[str, Any]
    maps: dict[str, pa.Table] = field(default_factory=dict)
    thumbnails: pa.Table | None = None


def work(
    data: SplitTable,
    model: RunModel,
    samples: Samples,
    outputs: Sequence[Output],
    probes: Sequence[Probe] = (),
    *,
    check_mixing: bool = False,
) -> BatchResult:
    """Explain samples with one explainer, and compute the scores of its cells. No files are written.

    Args:
        data: Samples of the run.
        model: Network of the run.
        samples: Samples to explain.
        outputs: Cells and kept maps of one explainer.
        probes: Probes of the networks. If a network has changed since the start of the run, the network is restored and
            the scores of the batch are discarded.
        check_mixing: Whether to test that the map of a sample does not depend on the other samples of the batch.

    Raises:
        UserError: An error affects every batch, for example because the explainer does not support the network. In a
            strict run, an error in a single sample also raises UserError.
    """
    explainer, batch = outputs[0].explainer, samples.batch
    cells = [output for output in outputs if isinstance(output, Cell)]
    classifier, seed, strict = model.classifier, data.spec.seed, data.spec.strict
    networks = [network.classifier for network in model.both]
    terms = [
        _terms(model.question, row, is_cut_off=position >= data.count)
        for position, row in zip(samples.positions, samples.rows, strict=True)
    ]
    halved_before = sum(network.halved for network in networks)
    target = stack(terms, len(samples.rows[0]["logits"])).to(batch.images.device)
    explained = explain(classifier, batch, explainer, target, seed, strict=strict)
    explained = _without_infinite(samples, target, explained, strict)
    scores, halved = score(data, model, samples, target, explained, cells)
    last = samples.rows[-1]["logits"]
    if check_mixing and depends_on_batch(classifier, batch, explainer, target, explained.maps, last, seed):
        _mark(scores, DEPENDS_ON_BATCH)
    raised = explained.maps is None or any(scored.raised for scored, _ in scores.values())
    passes = {"explain": explained.passes} | {key: count for key, (_, count) in scores.items()}
    halved += explained.halved + sum(network.halved for network in networks) - halved_before
    # It is unknown which sample of this batch changed the network, so all scores of the batch are discarded.
    if _set_back(probes, explainer, strict):
        reasons = dict.fromkeys(range(len(batch)), CHANGES_NETWORK)
        explained, scores = Explained(), {cell.id: (left_out(classifier, cell, reasons), 0) for cell in cells}
    if halved:
        _mark(scores, HALVED)
    rows = {
        cell.id: list(rows_of(samples, target_texts(model, cell, samples, terms), scores[cell.id][0], explained))
        for cell in cells
    }
    kept = {output.id: _kept(explained, samples) for output in outputs if isinstance(output, KeptMaps)}
    return BatchResult(
        explainer_id=hash_of(explainer.identity),
        positions=samples.positions,
        scores={key: pa.Table.from_pylist(of_cell, schema=records.STORED) for key, of_cell in rows.items()},
        about={"passes": passes, "halved": halved, "faults": _faults(chain(*rows.values())), "raised": raised}
        | {"batch_size": data.spec.batch_size}
        | explained.about,
        maps={key: table for key, table in kept.items() if table is not None},
        thumbnails=None if explained.maps is None else thumbnail_rows(explained.maps, samples.positions),
    )


def _terms(question: RunQuestion, row: dict, *, is_cut_off: bool) -> TargetTerms:
    """Return the target of a sample.

    A sample beyond the limit may have no target, so its predicted class is used instead. Such a sample is computed
    because batches are always complete, so that the maps of the other samples do not depend on the limit.
    """
    logits = np.asarray(row["logits"])
    if is_cut_off and not question.has_target(row):
        return TargetTerms((int(np.argmax(logits)),))
    return question.target_of(row, logits)


def _without_infinite(samples: Samples, target: Target, explained: Explained, strict: bool) -> Explained:
    """Remove the maps of targets with an infinite logit, because no change of the image can affect such a logit.

    Raises:
        UserError: A target has an infinite logit, and the run is strict.
    """
    logits = torch.tensor([row["logits"] for row in samples.rows])
    without = np.flatnonzero(weighs_infinite(logits, target)).tolist()
    if without and strict:
        raise UserError(f"image {samples.batch.ids[without[0]]}: {INFINITE_LOGIT}")
    if not without or explained.maps is None:
        return explained
    maps = explained.maps.index_fill(0, torch.tensor(without, device=explained.maps.device), 0)
    return replace(explained, maps=maps, faults=explained.faults | dict.fromkeys(without, INFINITE_LOGIT))


def _set_back(probes: Sequence[Probe], explainer: Explainer, strict: bool) -> bool:
    """Restore each network that an explainer or its metrics have changed. Return whether a network was restored.

    Raises:
        UserError: The run is strict, or a network cannot be restored.
    """
    changed = [probe for probe in probes if probe.differs()]
    for probe in changed:
        if strict:
            raise UserError(f"{explainer}, or one of its metrics, {CHANGES_NETWORK} {probe.classifier.id}; {FIX}")
        probe.restore(f"{explainer}, or one of its metrics,")
    return bool(changed)


def _mark(scores: Scores, reason: str) -> None:
    for scored, _ in scores.values():
        scored.mark(reason)


def _faults(rows: Iterable[dict]) -> int:
    """Return the number of samples whose score is missing because of an error."""
    scores = (row for row in rows if row["part"] is None)
    return sum(row["value"] is None and not is_expected(row["reason"]) for row in scores)


def _kept(explained: Explained, samples: Samples) -> pa.Table | None:
    """Return a table with the map of each sample (null for a missing map), or None if there are no maps at all."""
    if explained.maps is None:
        return None
    values = explained.maps.cpu().numpy().copy()
    maps = [None if index in explained.faults else values[index] for index in range(len(samples))]
    return table_of(samples.positions, samples.batch.ids, maps)
