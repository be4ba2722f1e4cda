"""Run every explainer and metric over a dataset and write the results to a folder. This file is the pipeline.

    load     dataset, network, explainers and metrics of the settings (`loading/`), as a `RunContext`
    plan     the incomplete batches, from the cells and the contents of the folder (`plan.py`)
    retrain  the networks of retraining metrics (`retraining/stage.py`), if there are such metrics
    predict  the network's predictions for each batch (`predictions.py`); for all samples first if metrics need partners
    explain  the maps of a batch by one explainer (`explain.py`)
    score    these maps by all metrics (`score.py`)
             Both are called by `work.py`, which writes no file and then checks the network again (`probe.py`).
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

The unit of work is a batch: `batch_size` consecutive samples, explained by one explainer and scored by all metrics
without stored scores for them. Results are written as part files (`read/parts.py`). Each part file is written once,
under a temporary name, and then renamed, so every file is complete. Its name contains a hash of its bytes. A start
deletes damaged files, ignores files of other runs, and computes missing results. A kill loses about half a minute of
work, or the current batch. A start may use a different batch size from the previous start; the summary then lists both.
Adding an explainer or a metric adds cells and recomputes no existing cell. The results per explainer and batch are
`Output` objects (`context.py`): cells or kept maps. A new type of output is planned and resumed in the same way.
"""

from contextlib import ExitStack
from pathlib import Path
from time import perf_counter
from typing import TypeVar, Unpack

from saliency_bench.compute.claim import locked, write_manifest
from saliency_bench.compute.context import RunContext
from saliency_bench.compute.finish import finish
from saliency_bench.compute.finished import Run
from saliency_bench.compute.loading.load import load
from saliency_bench.compute.misfits import without_misfits
from saliency_bench.compute.plan import Stored, by_explainer, missing, plan, selected
from saliency_bench.compute.predictions import StoredPredictions, predict, with_predictions
from saliency_bench.compute.preflight import check_run_folder, check_settings
from saliency_bench.compute.probe import Probe
from saliency_bench.compute.python_objects import Objects, describe, modes_kept, name_changed
from saliency_bench.compute.reading import ReadBatch, ahead
from saliency_bench.compute.retraining.stage import retrain_for
from saliency_bench.compute.work import work
from saliency_bench.compute.writing import Writer
from saliency_bench.errors import UserError
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
    """Score every explainer by every metric and write records, summary and report to the folder `out`.

    Args:
        progress: Whether to show a progress bar.
        **settings: SETTINGS

    Python objects may replace names. An explainer may be any function (classifier, images, target) -> maps. A metric
    may be a function such as f(maps, masks); `sb.metric` declares the range and direction of its scores. A model may be
    a module or the result of `load_classifier`, and its weights are not changed. A label map and groups may be dicts.
    `precision`, `channels_last` and `compile` are part of a cell's identity; `limit`, `batch_size`, `strict`, `device`
    and `out` are not. If `limit` cuts the last batch, `forward_passes` in the summary counts the whole batch, while the
    scores include only its first samples. `summary["faults"]` counts the scores that are missing because of an error.

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
        group: Processes that share the batches; None for all that were launched.
    """
    started = perf_counter()
    if not (spec.explainers or spec.maps) or not spec.metrics:
        lacking = "explainers" if spec.metrics else "metrics"
        raise UserError(f"a run needs at least one explainer and one metric{FIRST[lacking]}")
    check_settings(dict(spec))
    check_run_folder(Path(spec.out))
    accelerator = group or accelerator_on(spec.device)
    with without_bars(not progress):
        context = without_misfits(load(spec, objects, accelerator.device), accelerator)
        return compute(context, accelerator, started, progress=progress)


def compute(context: RunContext, accelerator: ProcessGroup, started: float, *, progress: bool = True) -> Run:
    """Compute the missing cells, split over the processes; then write records, summary and report.

    Args:
        context: Loaded objects of the run.
        accelerator: Processes that share the batches.
        started: Value of `perf_counter()` when loading began.
        progress: Whether to show a progress bar.
    """
    shown = progress and accelerator.is_local_main_process
    summary: dict = {}
    with ExitStack() as lock:
        agreed(accelerator, lambda: _claim(context, lock))
        # Ids of cells depend on these plans, so the missing cells are only known after this step.
        context = _with_partner_plans(context, accelerator, shown)
        todo = agreed(accelerator, lambda: plan(context, write_manifest(context).cells))
        computing = perf_counter()
        incomplete = {cell_id for _, stored in todo for cell_id in stored}
        retrain_for(context, [cell for cell in context.cells if cell.id in incomplete], accelerator, progress)
        timings = _compute_batches(context, _share(todo, accelerator), shown, accelerator.num_processes)
        if accelerator.is_main_process:
            ran = [item for item in context.explainers if hash_of(item.identity) in timings["explainers"]]
            name_changed([*ran, *(context.metrics if ran else ())])
        wait_for_all(accelerator)
        timings["computing"] = perf_counter() - computing
        if accelerator.is_main_process:
            summary = finish(context, perf_counter() - started, timings)
    done = Run(context.out, summary, complete=not todo)
    if summary and done.doubt:
        complain(done.doubt)
    return done


def _claim(context: RunContext, lock: ExitStack) -> None:
    """Lock the folder until `lock` closes, and write its manifest.

    Raises:
        UserError: The folder is in use, contains other files, contains results of a network with other logits for fixed
            pictures, or a cell cannot be serialised.
    """
    _ = [cell.key for cell in context.cells]  # raises an error before anything is written if a name has a line break
    lock.enter_context(locked(context.out, context.spec.out))
    write_manifest(context, ask=True)


def _share(batches: list[Item], accelerator: ProcessGroup) -> list[Item]:
    """Return consecutive batches for this process, so that later reads need one file at a time."""
    index, processes = accelerator.process_index, accelerator.num_processes
    return batches[len(batches) * index // processes : len(batches) * (index + 1) // processes]


def _with_partner_plans(context: RunContext, accelerator: ProcessGroup, shown: bool) -> RunContext:
    """Add the plans of the metrics that need partners; if there are any, all samples are predicted first."""
    if all(metric.declaration.plan is None for metric in context.metrics):
        return context

    def unpredicted() -> list[range]:
        known = context.predictions(check=True)
        return [batch for batch in context.batches if not known.is_stored[batch.start : batch.stop].all()]

    share = _share(agreed(accelerator, unpredicted), accelerator)
    known = context.predictions()
    with (
        bar(shown=shown and bool(share), total=len(share), desc="predict", unit="batch") as advance,
        Writer(context.store, accelerator.num_processes) as writer,
    ):
        for batch, read in ahead(context.read, share, lambda seconds: None):
            _predictions(context, batch, read, known, writer)
            advance.update()
    wait_for_all(accelerator)
    return context.with_plans()


def _compute_batches(context: RunContext, share: list[tuple[range, Stored]], shown: bool, processes: int) -> dict:
    """Compute and store the missing predictions, maps and scores of these batches. Return the seconds per explainer.

    Args:
        context: Loaded objects of the run.
        share: [(batch, {output: positions that files contain})] of this process.
        shown: Whether to show a progress bar.
        processes: Number of processes of the run.

    Returns:
        {"explainers": {explainer id: seconds}, "waiting_for_data": seconds}.
    """
    waited: list[float] = []
    seconds: dict[str, float] = {}
    todo = {
        batch: (stored, by_explainer(output for output in context.outputs if output.id in stored))
        for batch, stored in share
    }
    known = {run.folder: run.predictions() for run in context.of_both}
    probes: list[Probe] = []
    total = sum(len(of_explainers) for _, of_explainers in todo.values())
    with (
        bar(shown=shown and bool(todo), total=total, desc="explain", unit="batch") as advance,
        Writer(context.store, processes) as writer,
    ):
        for batch, read in ahead(context.read, list(todo), waited.append):
            stored, of_explainers = todo[batch]
            samples = _predicted(context, batch, read, known, writer)
            # Create probes before the first explainer uses the network, from images that this process reads anyway.
            if not probes and samples is not None and of_explainers:
                probes = [Probe(run.classifier, samples.batch.images) for run in context.of_both]
            chosen = [] if samples is None else selected(context.selection, samples)
            for explainer, outputs in of_explainers.items():
                start = perf_counter()
                advance.set_postfix_str(explainer.name)
                # Outputs that lack the same samples share maps.
                for positions, of_outputs in missing(chosen, outputs, stored).items():
                    part = samples and samples.at(positions)
                    assert part is not None
                    # Checking one batch is enough to detect a method that mixes samples.
                    first = batch.start == 0 and part is samples
                    writer.add_batch(work(context, part, of_outputs, probes, check_mixing=first))
                key = hash_of(explainer.identity)
                seconds[key] = seconds.get(key, 0.0) + perf_counter() - start
                advance.update()
    return {"explainers": seconds, "waiting_for_data": sum(waited)}


def _predicted(
    context: RunContext, batch: range, read: ReadBatch, known: dict[str, StoredPredictions], writer: Writer
) -> Samples | None:
    """Return the explainable samples of a batch, with the predictions of the run's networks.

    Raises:
        UserError: A network raised an error for a sample, and the run is strict.
    """
    rows = _predictions(context, batch, read, known[context.folder], writer)
    other = context.other
    of_other = None
    if other is not None:
        of_other = _predictions(other, batch, context.of_other(read), known[other.folder], writer)
    if read.samples is None:
        return None
    return with_predictions(read.samples, rows, of_other, strict=context.spec.strict)


def _predictions(
    context: RunContext, batch: range, read: ReadBatch, known: StoredPredictions, writer: Writer
) -> dict[int, dict]:
    """Return {position: prediction} of a batch, read from files or else computed and written."""
    there = [position for position in batch if known.is_stored[position]]
    rows = dict(zip(there, known.table(batch).to_pylist(), strict=True)) if there else {}
    if len(rows) < len(batch):
        lacking = read.at([position for position in batch if position not in rows])
        predicted, result = predict(context.classifier, context.question, lacking, context.schema)
        writer.add(context.prediction_parts, result)
        rows |= dict(zip(lacking.positions, predicted, strict=True))
    return rows
