"""Run every explainer and metric over a dataset and write the results to a folder. This file is the pipeline.

    load     dataset, network, and explainers with their metrics (`loading/`): `data, model, pairs`
    cells    the pairs of explainer and metric with their ids (`cells.py`)
    plan     the incomplete batches, from the cells and the contents of the folder (`plan.py`)
    retrain  the networks of retraining metrics (`retraining/stage.py`), if there are such metrics
    predict  the network's predictions for each batch (`predictions.py`); for all samples first if metrics need partners
    explain  the maps of one explainer for a batch (`explain.py`)
    score    the scores of these maps on all metrics (`score.py`)
             `work.py` explains and scores, writes no file, and then checks the network again (`probe.py`).
    store    results of about half a minute as part files, while the next batches are computed (`writing.py`)
    finish   tables of the parts (`merging.py`), summary, examples and page (`finish.py`)

    OUT/run.json           settings, identity and cells: `Manifest` (`run_folder.py`)
    OUT/predictions/       part files of the classifier   -> predictions.parquet
    OUT/other_predictions/ part files of the other model, if there is one
    OUT/scores/            part files of scores           -> records.parquet
    OUT/maps/EXPLAINER/    the maps, in a run that stores them
    OUT/thumbnails/        small maps for the report      -> examples.npz
    OUT/retraining/        maps and networks of retraining metrics
    OUT/summary.json  timings.json  report.html
    OUT/written.json       hashes of the inputs of tables, summary, examples and page

The unit of work is a batch: `batch_size` consecutive samples, explained with one explainer and scored with all metrics
that have no stored scores for them. Results are written as part files (`read/parts.py`). Each part file is written
once, under a temporary name, and then renamed, so every file is complete. The file name contains a hash of the file's
bytes. Each call of `run` deletes damaged files, ignores files of other runs, and computes missing results. If a process
is killed, about half a minute of work or the current batch is lost. A call may use a different batch size from the
previous call; the summary then lists both. Adding an explainer or a metric adds cells and recomputes no existing cell.
The results per explainer and batch are `Output` objects (`cells.py`): cells or kept maps. A new type of output is
planned and resumed in the same way.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import TypeVar, Unpack

from saliency_bench.bound_metric import Metric
from saliency_bench.compute.cells import Cell, cells_of, explainers_of, outputs_of
from saliency_bench.compute.claim import locked, write_manifest
from saliency_bench.compute.finish import finish
from saliency_bench.compute.loaded import Pairs, RunModel, identity_of, metrics_of
from saliency_bench.compute.loading.load import load
from saliency_bench.compute.loading.table import SplitTable
from saliency_bench.compute.misfits import check_contrast, misfits_of
from saliency_bench.compute.plan import Stored, by_explainer, missing, plan, selected
from saliency_bench.compute.predictions import StoredPredictions, plans_of, predict, with_predictions
from saliency_bench.compute.preflight import check_run_folder, check_settings
from saliency_bench.compute.probe import Probe
from saliency_bench.compute.python_objects import Objects, describe, modes_kept, name_changed
from saliency_bench.compute.reading import ReadBatch, ahead
from saliency_bench.compute.retraining.stage import retrain_for
from saliency_bench.compute.scoring.partners import PartnerPlan
from saliency_bench.compute.work import work
from saliency_bench.compute.writing import Writer
from saliency_bench.errors import UserError
from saliency_bench.read.finished_run import Run
from saliency_bench.read.parts import RunStore
from saliency_bench.settings import RunSettings
from saliency_bench.spec import FIRST, RunSpec, takes_settings
from saliency_bench.types import Samples
from saliency_bench.utils.hashing import hash_of
from saliency_bench.utils.interrupts import handlers_end_work
from saliency_bench.utils.messages import complain
from saliency_bench.utils.processes import ProcessGroup, accelerator_on, agreed, wait_for_all
from saliency_bench.utils.progress import bar, without_bars
from saliency_bench.utils.untouched import untouched

Item = TypeVar("Item")


@takes_settings()
@untouched()
def run(*, progress: bool = True, **settings: Unpack[RunSettings]) -> Run:
    """Score every explainer with every metric, and write records, summary and report to the folder `out`.

    Args:
        progress: Whether to show a progress bar.
        **settings: SETTINGS

    Python objects may be passed instead of names. An explainer may be any function (classifier, images, target) ->
    maps. A metric may be a function such as f(maps, masks); `sb.metric` declares the range and direction of its scores.
    A model may be a module or the result of `load_classifier`, and its weights are not changed. A label map and groups
    may be dicts. `precision`, `channels_last` and `compile` are part of a cell's identity; `limit`, `batch_size`,
    `strict`, `device` and `out` are not. If `limit` falls inside the last batch, `forward_passes` in the summary counts
    the whole batch, while the scores include only its first samples. `summary["faults"]` counts the scores that are
    missing because of an error.

    A later call with the same `out` computes only missing results.

    Raises:
        UserError: The caller can fix the problem. Results computed so far remain valid in `out`.
    """
    with modes_kept(settings):
        return start(*describe(settings), progress=progress)


@handlers_end_work()
@untouched()
def start(spec: RunSpec, objects: Objects, *, progress: bool = True, group: ProcessGroup | None = None) -> Run:
    """Run the settings of a spec.

    Args:
        spec: The settings.
        objects: The Python objects that the spec refers to.
        progress: Whether to show a progress bar.
        group: Processes that share the batches; None for all launched processes.
    """
    started = perf_counter()
    if not (spec.explainers or spec.maps) or not spec.metrics:
        lacking = "explainers" if spec.metrics else "metrics"
        raise UserError(f"a run needs at least one explainer and one metric{FIRST[lacking]}")
    check_settings(dict(spec))
    check_run_folder(Path(spec.out))
    accelerator, out = group or accelerator_on(spec.device), Path(spec.out).absolute()
    with without_bars(not progress):
        data, model, pairs = load(spec, objects, accelerator.device)
        return compute(RunStore(out, identity_of(data, model)), data, model, pairs, accelerator, started)


def compute(
    store: RunStore, data: SplitTable, model: RunModel, pairs: Pairs, accelerator: ProcessGroup, started: float
) -> Run:
    """Compute the missing cells, split over the processes; then write records, summary and report.

    Args:
        store: Part files of the run.
        data: Samples of the run.
        model: Network of the run.
        pairs: Explainers with their metrics.
        accelerator: Processes that share the batches.
        started: Value of `perf_counter()` when loading began.
    """
    summary: dict = {}
    check_contrast(model.question.rule, pairs)
    misfits = agreed(accelerator, lambda: misfits_of(list(pairs), store, data, model))
    pairs = {explainer: metrics for explainer, metrics in pairs.items() if str(explainer) not in misfits}
    with ExitStack() as lock:
        agreed(accelerator, lambda: _claim(store, data, model, pairs, lock))
        # Ids of cells depend on these plans, so the missing cells are only known after this step.
        plans = _partner_plans(store, data, model, pairs, accelerator)
        cells = cells_of(store.identity, data, model, pairs, plans)
        todo = agreed(
            accelerator, lambda: plan(store, data, model, cells, write_manifest(store, data, model, cells).cells)
        )
        computing = perf_counter()
        incomplete = {cell_id for _, stored in todo for cell_id in stored}
        retrained = retrain_for([cell for cell in cells if cell.id in incomplete], store.out, data, model, accelerator)
        cells = [replace(cell, retrained=retrained.get(cell.id)) for cell in cells]
        timings = _compute_batches(store, data, model, cells, todo, accelerator)
        if accelerator.is_main_process:
            ran = [item for item in explainers_of(cells) if hash_of(item.identity) in timings["explainers"]]
            name_changed([*ran, *(dict.fromkeys(cell.metric for cell in cells) if ran else ())])
        wait_for_all(accelerator)
        timings |= {"computing": perf_counter() - computing, "seconds": perf_counter() - started}
        if accelerator.is_main_process:
            summary = finish(store, data, model, cells, misfits, timings)
    done = Run(store.out, summary, complete=not todo)
    if summary and done.doubt:
        complain(done.doubt)
    return done


def _claim(store: RunStore, data: SplitTable, model: RunModel, pairs: Pairs, lock: ExitStack) -> None:
    """Lock the folder until `lock` closes, and write its manifest.

    Raises:
        UserError: The folder is in use, contains other files, contains results of a network with different logits for
            fixed images, or a cell cannot be serialised.
    """
    cells = cells_of(store.identity, data, model, pairs, {})
    _ = [cell.key for cell in cells]  # raises an error before anything is written if a name has a line break
    lock.enter_context(locked(store.out, data.spec.out))
    write_manifest(store, data, model, cells, ask=True)


def _share(batches: list[Item], accelerator: ProcessGroup) -> list[Item]:
    """Return this process's share: consecutive batches, so that later reads need one file at a time."""
    index, processes = accelerator.process_index, accelerator.num_processes
    return batches[len(batches) * index // processes : len(batches) * (index + 1) // processes]


def _partner_plans(
    store: RunStore, data: SplitTable, model: RunModel, pairs: Pairs, accelerator: ProcessGroup
) -> dict[Metric, PartnerPlan]:
    """Return the partner plans of metrics that need partners. If there are any, all samples are classified first."""
    if all(metric.declaration.plan is None for metric in metrics_of(pairs)):
        return {}

    def unpredicted() -> list[range]:
        known = StoredPredictions.read(store, data, model, check=True)
        return [batch for batch in data.batches if not known.is_stored[batch.start : batch.stop].all()]

    share, shown = _share(agreed(accelerator, unpredicted), accelerator), accelerator.is_local_main_process
    known = StoredPredictions.read(store, data, model)
    with (
        bar(shown=shown and bool(share), total=len(share), desc="predict", unit="batch") as advance,
        Writer(store, accelerator.num_processes) as writer,
    ):
        for _, read in ahead(partial(data.read, model.classifier), share, lambda seconds: None):
            _predictions(data, model, read, known, writer)
            advance.update()
    wait_for_all(accelerator)
    return plans_of(store, data, model, pairs)


def _compute_batches(
    store: RunStore, data: SplitTable, model: RunModel, cells: Sequence[Cell], todo: list[tuple[range, Stored]],
    accelerator: ProcessGroup,
) -> dict:  # fmt: skip
    """Compute and store this process's share of the missing predictions, maps and scores.

    Returns:
        {"explainers": {explainer id: seconds}, "waiting_for_data": seconds}.
    """
    waited: list[float] = []
    seconds: dict[str, float] = {}
    outputs = outputs_of(cells, data.spec.keep_maps)
    share = {
        batch: (stored, by_explainer(output for output in outputs if output.id in stored))
        for batch, stored in _share(todo, accelerator)
    }
    known = {network.folder: StoredPredictions.read(store, data, network) for network in model.both}
    probes: list[Probe] = []
    total, shown = sum(len(outputs) for _, outputs in share.values()), accelerator.is_local_main_process
    with (
        bar(shown=shown and bool(share), total=total, desc="explain", unit="batch") as advance,
        Writer(store, accelerator.num_processes) as writer,
    ):
        for batch, read in ahead(partial(data.read, model.classifier), list(share), waited.append):
            stored, of_explainers = share[batch]
            samples = _predicted(data, model, read, known, writer)
            # Create probes before the first explainer uses the network, from images that this process reads anyway.
            if not probes and samples is not None and of_explainers:
                probes = [Probe(network.classifier, samples.batch.images) for network in model.both]
            chosen = [] if samples is None else selected(model.question.selection, samples)
            for explainer, outputs in of_explainers.items():
                start = perf_counter()
                advance.set_postfix_str(explainer.name)
                # Outputs that lack the same samples share maps.
                for positions, of_outputs in missing(chosen, outputs, stored).items():
                    part = samples and samples.at(positions)
                    assert part is not None
                    # Checking one batch is enough to detect a method that mixes samples.
                    first = batch.start == 0 and part is samples
                    writer.add_batch(work(data, model, part, of_outputs, probes, check_mixing=first))
                key = hash_of(explainer.identity)
                seconds[key] = seconds.get(key, 0.0) + perf_counter() - start
                advance.update()
    return {"explainers": seconds, "waiting_for_data": sum(waited)}


def _predicted(
    data: SplitTable, model: RunModel, read: ReadBatch, known: dict[str, StoredPredictions], writer: Writer
) -> Samples | None:
    """Predict a batch with the run's networks. Return the samples that can be explained, with their predictions.

    Raises:
        UserError: A network raised an error for a sample, and the run is strict.
    """
    rows = _predictions(data, model, read, known[model.folder], writer)
    other, of_other = model.other, None
    if other is not None:
        of_other = _predictions(data, other, model.of_other(read), known[other.folder], writer)
    if read.samples is None:
        return None
    return with_predictions(read.samples, rows, of_other, strict=data.spec.strict)


def _predictions(
    data: SplitTable, model: RunModel, read: ReadBatch, known: StoredPredictions, writer: Writer
) -> dict[int, dict]:
    """Return {position: prediction} for a batch. Predictions that are not stored are computed and written."""
    batch = range(read.positions[0], read.positions[-1] + 1)
    there = [position for position in batch if known.is_stored[position]]
    rows = dict(zip(there, known.table(batch).to_pylist(), strict=True)) if there else {}
    if len(rows) < len(batch):
        lacking = read.at([position for position in batch if position not in rows])
        predicted, result = predict(model.classifier, model.question, lacking, data.schema)
        writer.add(writer.store.predictions(model.folder, data.schema), result)
        rows |= dict(zip(lacking.positions, predicted, strict=True))
    return rows
