"""A run: every explainer and metric over a dataset, as a folder of cells. This file is the pipeline.

    load     what the settings name: dataset, network, explainers, metrics (`loading/`), as a `RunContext`
    plan     the chunks that lack something, from the cells and from what the folder holds (`plan.py`)
    retrain  the networks that retraining metrics ask for (`retraining/stage.py`), if there are such metrics
    predict  what the network says of each chunk (`predictions.py`); of all samples first where metrics ask for partners
    explain  the maps of a chunk by one explainer (`explain.py`)
    score    these maps by all metrics (`score.py`)
             Both are called by `work.py`, which writes no file and then tries the network again (`probe.py`).
    store    results of about half a minute as part files, while the next chunks are computed (`store.py`)
    finish   tables of the parts (`merging.py`), summary, examples and page (`finish.py`)

    OUT/run.json           settings, identity and cells: `Manifest` (`run_folder.py`)
    OUT/predictions/       part files of the classifier   -> predictions.parquet
    OUT/other_predictions/ the same of the other model, if there is one
    OUT/chunks/            part files of scores           -> records.parquet
    OUT/maps/EXPLAINER/    the maps, of a run that keeps them
    OUT/thumbnails/        small maps for the report      -> examples.npz
    OUT/retraining/        maps and networks of retraining metrics
    OUT/summary.json  timings.json  report.html
    OUT/written.json       what tables, summary, examples and page were made of

The unit of work is a chunk: `batch_size` consecutive samples, explained by one explainer and scored by all metrics that
lack them. Results are written as part files (`read/parts.py`), each once, under a temporary name and then renamed,
so that every file is complete; its name has a hash of its bytes. A start deletes what is damaged, ignores what is not
of this run, and computes what is missing: after a kill, about half a minute of work or the chunk that was under way.
Adding an explainer or a metric adds cells and redoes none. What a run makes per explainer and chunk is an `Output`
(`context.py`), a cell or kept maps: a new kind of output is planned and resumed like the others.
"""

from contextlib import ExitStack
from dataclasses import replace
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
from saliency_bench.compute.predictions import (
    PredictedChunk,
    StoredPredictions,
    all_predictions,
    of_predicted,
    predict,
    prediction_parts,
    stored_predictions,
)
from saliency_bench.compute.preflight import check_run_folder, check_settings
from saliency_bench.compute.probe import Probe
from saliency_bench.compute.python_objects import Objects, describe, modes_kept, name_changed
from saliency_bench.compute.reading import ahead
from saliency_bench.compute.retraining.stage import retrain_for
from saliency_bench.compute.scoring.partners import plan_of
from saliency_bench.compute.store import Writer
from saliency_bench.compute.work import work
from saliency_bench.errors import UserError
from saliency_bench.settings import RunSettings
from saliency_bench.spec import FIRST, RunSpec, takes_settings
from saliency_bench.types import Chunk
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
        progress: show a bar.
        **settings: SETTINGS

    Python objects may stand in the place of names: an explainer, or any function (classifier, images, target) -> maps;
    a metric, or a function such as f(maps, masks), of which `sb.metric` says what its scores mean; a model object or
    what `load_classifier` gives, which stays as it is; a dict as label map or groups.
    `precision`, `channels_last` and `compile` are part of a cell's identity; limit, batch_size, strict, device and out
    are not. Where `limit` cuts the last chunk, `forward_passes` of the summary count all of it, and the scores its
    first samples only. `summary["faults"]` counts what was left out because it failed.

    Started again with the same `out`, it computes what is missing.

    Raises:
        UserError: Anything the caller can fix; what was computed until then stays in `out`, complete.
    """
    with modes_kept(settings):
        return start(*describe(settings), progress=progress)


@handlers_end_work()
@untouched()
def start(spec: RunSpec, objects: Objects, *, progress: bool = True, group: ProcessGroup | None = None) -> Run:
    """Run settings that are written down.

    Args:
        spec: the settings.
        objects: the Python objects that they mention.
        progress: whether to show a bar.
        group: the processes that share the chunks; None: all that were launched.
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
    """Compute what is missing of all cells, each process its share; then write records, summary and report.

    Args:
        context: what the run works on.
        accelerator: the processes that share the chunks.
        started: `perf_counter()` when loading began.
        progress: whether to show a bar.
    """
    shown = progress and accelerator.is_local_main_process
    summary: dict = {}
    with ExitStack() as lock:
        agreed(accelerator, lambda: _claim(context, lock))
        # Ids of cells depend on these plans, so what is missing is only known afterwards.
        context = _with_partner_plans(context, accelerator, shown)
        todo = agreed(accelerator, lambda: plan(context, write_manifest(context).cells))
        computing = perf_counter()
        incomplete = {cell_id for _, stored in todo for cell_id in stored}
        retrain_for(context, [cell for cell in context.cells if cell.id in incomplete], accelerator, progress)
        timings = _compute_chunks(context, dict(_share(todo, accelerator)), shown, accelerator.num_processes)
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
        UserError: The folder is in use, holds something else or results of a network with other logits for fixed
            pictures, or a cell cannot be serialised.
    """
    _ = [cell.key for cell in context.cells]  # before anything is written: no file can hold a name with a line break
    lock.enter_context(locked(context.out, context.spec.out))
    write_manifest(context, ask=True)


def _share(chunks: list[Item], accelerator: ProcessGroup) -> list[Item]:
    """Return which of these chunks this process computes: neighbours, so that later one file at a time is read."""
    index, processes = accelerator.process_index, accelerator.num_processes
    return chunks[len(chunks) * index // processes : len(chunks) * (index + 1) // processes]


def _with_partner_plans(context: RunContext, accelerator: ProcessGroup, shown: bool) -> RunContext:
    """Add the plans of the metrics that ask for partners; for these, all samples are predicted first."""
    asking = [metric for metric in context.metrics if metric.declaration.plan is not None]
    if not asking:
        return context

    def unpredicted() -> list[int]:
        known = stored_predictions(context, check=True)
        return [number for number in context.chunks if number not in known]

    share = _share(agreed(accelerator, unpredicted), accelerator)
    with (
        bar(shown=shown and bool(share), total=len(share), desc="predict", unit="batch") as advance,
        Writer(context, accelerator.num_processes) as writer,
    ):
        for number, chunk in ahead(context.chunk, share, lambda seconds: None):
            writer.add(prediction_parts(context), predict(context, number, chunk)[1])
            advance.update()
    wait_for_all(accelerator)
    predictions = all_predictions(context)
    return replace(context, plans={metric: plan_of(metric, predictions) for metric in asking})


def _compute_chunks(context: RunContext, share: dict[int, Stored], shown: bool, processes: int) -> dict:
    """Predict, explain and score what is missing of these chunks, store it, and return the seconds it took.

    Args:
        context: what the run works on.
        share: {chunk: {output: positions that files hold}} of this process.
        shown: whether to show a bar.
        processes: how many compute.

    Returns:
        {"explainers": {explainer id: seconds}, "waiting_for_data": seconds}.
    """
    waited: list[float] = []
    seconds: dict[str, float] = {}
    todo = {
        number: by_explainer(output for output in context.outputs if output.id in stored)
        for number, stored in share.items()
    }
    known = {run.folder: stored_predictions(run) for run in context.of_both}
    probes: list[Probe] = []
    total = sum(map(len, todo.values()))
    with (
        bar(shown=shown and bool(todo), total=total, desc="explain", unit="batch") as advance,
        Writer(context, processes) as writer,
    ):
        for number, chunk in ahead(context.chunk, list(todo), waited.append):
            samples = _predicted(context, number, chunk, known, writer)
            # Before the first explainer touches the network, on images that this process has read anyway.
            if not probes and samples.batch is not None and todo[number]:
                probes = [Probe(run.classifier, samples.batch.images) for run in context.of_both]
            chosen = selected(context, number, samples.rows)
            for explainer, outputs in todo[number].items():
                start = perf_counter()
                advance.set_postfix_str(explainer.name)
                # Outputs that lack the same samples share their maps.
                for positions, lacking in missing(chosen, outputs, share[number]).items():
                    writer.add_chunk(work(context, samples.part(positions), lacking, probes))
                key = hash_of(explainer.identity)
                seconds[key] = seconds.get(key, 0.0) + perf_counter() - start
                advance.update()
    return {"explainers": seconds, "waiting_for_data": sum(waited)}


def _predicted(
    context: RunContext, number: int, chunk: Chunk, known: dict[str, StoredPredictions], writer: Writer
) -> PredictedChunk:
    """Return a chunk with the networks' predictions, read from files or predicted now and written.

    Raises:
        UserError: A network raised for a sample, and the run is strict.
    """
    of_networks = [chunk] if context.other is None else [chunk, context.of_other(chunk)]
    rows: list[list[dict]] = []
    for position, (run, of_run) in enumerate(zip(context.of_both, of_networks, strict=True)):
        if number in known[run.folder]:
            rows.append(known[run.folder].table(number).to_pylist())
        else:
            answers, result = predict(run, number, of_run)
            writer.add(prediction_parts(run), result)
            rows.append(answers)
        of_networks[position] = of_predicted(run, of_run, rows[-1])
    first, positions = number * context.spec.batch_size, tuple(range(len(chunk.rows)))
    return PredictedChunk(number, first, positions, of_networks[0], rows[0], rows[1] if len(rows) > 1 else None)
