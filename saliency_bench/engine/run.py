"""A run: every explainer and metric over a dataset, as a folder of cells.

    load     what the settings name: dataset, network, explainers, metrics (`loading/`), as a `RunContext`
    plan     the chunks of which something is missing, from the cells and from what the folder holds (`store.plan`)
    predict  what the network says of each chunk (`predictions.py`)
    work     one explainer and all its metrics on one chunk, without touching a file (`work.py`); a probe asks whether
             the network still answers as before (`probe.py`)
    write    results of about half a minute as part files (`store.Writer`), while the next chunks are computed
    finish   tables of the parts (`merging.py`), summary, examples and page: `_finish`

    OUT/run.json           settings, identity and cells: `Manifest`
    OUT/predictions/       part files of the classifier   -> predictions.parquet
    OUT/other_predictions/ the same of the other model, if there is one
    OUT/chunks/            part files of scores           -> records.parquet
    OUT/maps/EXPLAINER/    the maps, of a run that keeps them
    OUT/thumbnails/        small maps for the report      -> examples.npz
    OUT/merged.json        what the two tables were made of
    OUT/summary.json  timings.json  report.html
    OUT/written.json       what these and examples.npz were made of

The unit of work is a chunk: `batch_size` consecutive samples, computed whole by one explainer and scored by all its
metrics. Results are written as part files (`results/parts.py`), each once, under a temporary name and then renamed, so
that every file is complete; its name has a hash of its bytes. A start deletes what is damaged, ignores what is not of
this run, and computes what is missing, which after a kill is the work of half a minute. At the end the parts are
merged, cell after cell, then by sample and part, unless the tables were made of the same parts already; nor are summary
and page written again. Adding an explainer or a metric adds cells and redoes none.
"""

import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Unpack

from filelock import FileLock, Timeout

from saliency_bench.bound_explainer import Explainer
from saliency_bench.bound_metric import Metric
from saliency_bench.classifiers.passes import PIXELS_PER_PASS
from saliency_bench.engine.context import RunContext
from saliency_bench.engine.examples import write_examples
from saliency_bench.engine.finished import Run
from saliency_bench.engine.loading.load import load
from saliency_bench.engine.merging import derived_from, is_written, merge, note_written
from saliency_bench.engine.predictions import (
    StoredPredictions,
    all_predictions,
    of_predicted,
    predict,
    prediction_parts,
    predictions_of,
    selected,
    unpredicted,
)
from saliency_bench.engine.preflight import check_run_folder, check_settings
from saliency_bench.engine.probe import Probe
from saliency_bench.engine.python_objects import Objects, describe, modes_kept, name_changed
from saliency_bench.engine.reading import ahead
from saliency_bench.engine.retraining.stage import retrain_for
from saliency_bench.engine.store import Stored, Writer, by_explainer, missing, plan
from saliency_bench.engine.work import work
from saliency_bench.errors import UserError
from saliency_bench.registry import owner_of
from saliency_bench.reports.page import report
from saliency_bench.results.cell import read_cells
from saliency_bench.results.manifest import Manifest, Other, read_earlier
from saliency_bench.results.summary import RunFacts, summarise
from saliency_bench.scoring.partners import plan_of
from saliency_bench.settings import RunSettings
from saliency_bench.spec import FIRST, RunSpec, takes_settings
from saliency_bench.types import Chunk
from saliency_bench.utils.devices import peak_memory
from saliency_bench.utils.files import read_json, write_json
from saliency_bench.utils.hashing import hash_of
from saliency_bench.utils.interrupts import handlers_end_work
from saliency_bench.utils.messages import complain
from saliency_bench.utils.processes import Group, accelerator_on, agreed, wait_for_all
from saliency_bench.utils.progress import bar
from saliency_bench.utils.provenance import provenance


@dataclass(frozen=True)
class Stopwatch:
    """Measures the seconds since its creation, whatever happens to the system clock.

    Attributes:
        started: time of its creation, seconds since 1970.
        counter: the same by a clock that is never set.
    """

    started: float = field(default_factory=lambda: time.time())
    counter: float = field(default_factory=lambda: time.perf_counter())

    @property
    def seconds(self) -> float:
        """Return the seconds since the creation."""
        return time.perf_counter() - self.counter


@takes_settings()
def run(*, progress: bool = True, **settings: Unpack[RunSettings]) -> Run:
    """Score every explainer by every metric and write records, summary and report to the folder `out`.

    Args:
        progress: show a bar.
        **settings: SETTINGS

    Python objects may stand in the place of names: an explainer, or any function (classifier, images, target) -> maps;
    a metric, or a function such as f(maps, masks), of which `sb.metric` says what its scores mean; a model object or
    what `load_classifier` gives, which stays as it is; a dict as label map or groups.
    `precision` and `channels_last` are part of a cell's identity; limit, batch_size, strict, device and out are not.
    Where `limit` cuts the last chunk, `forward_passes` of the summary count all of it, and the scores its first samples
    only. `summary["faults"]` counts what was left out because it failed.

    Started again with the same `out`, it computes what is missing.

    Raises:
        UserError: Anything the caller can fix; `out` then holds nothing new but complete chunks.
    """
    with modes_kept(settings):
        return start(*describe(settings), progress=progress)


@handlers_end_work()
def start(spec: RunSpec, objects: Objects, *, progress: bool = True, group: Group | None = None) -> Run:
    """Run settings that are written down.

    Args:
        spec: the settings.
        objects: the Python objects that they mention.
        progress: whether to show a bar.
        group: the processes that share the chunks; None: all that were launched.
    """
    watch = Stopwatch()
    if not (spec.explainers or spec.maps) or not spec.metrics:
        lacking = "explainers" if spec.metrics else "metrics"
        raise UserError(f"a run needs at least one explainer and one metric{FIRST[lacking]}")
    check_settings(dict(spec))
    check_run_folder(Path(spec.out))
    accelerator = group or accelerator_on(spec.device)
    return compute(load(spec, objects, accelerator.device), accelerator, watch, progress=progress)


def compute(context: RunContext, accelerator: Group, watch: Stopwatch, *, progress: bool = True) -> Run:
    """Compute what is missing of all cells, each process its share; then write records, summary and report.

    Args:
        context: what the run works on.
        accelerator: the processes that share the chunks.
        watch: started when loading began.
        progress: whether to show a bar.
    """
    _check_cells(context)  # before anything is written: a metric may not fit
    shown = progress and accelerator.is_local_main_process
    with ExitStack() as locked:
        agreed(accelerator, lambda: _claim(context, locked))
        # Ids of cells depend on these plans, so what is missing is only known afterwards.
        context = _with_partner_plans(context, accelerator, shown)
        todo = agreed(accelerator, lambda: plan(context, _write_manifest(context).cells))
        share = dict(todo[_share(len(todo), accelerator)])
        start = time.perf_counter()
        incomplete = {cell_id for _, stored in todo for cell_id in stored}
        retrain_for(context, [cell for cell in context.cells if cell.id in incomplete], accelerator, progress)
        seconds = _compute_chunks(context, share, shown, accelerator.num_processes)
        if accelerator.is_main_process:
            ran = [
                explainer for explainer in context.explainers if hash_of(explainer.identity) in seconds["explainers"]
            ]
            name_changed([*ran, *(context.metrics if ran else ())])
        wait_for_all(accelerator)
        seconds["computing"] = time.perf_counter() - start
        summary = _finish(context, watch, seconds) if accelerator.is_main_process else {}
    done = Run(context.out, summary, complete=not todo)
    if summary and done.doubt:
        complain(done.doubt)
    return done


def _check_cells(context: RunContext) -> None:
    """Raise UserError for a cell that cannot be written down, such as one whose name has a line break."""
    for cell in context.cells:
        assert cell.key


def _claim(context: RunContext, locked: ExitStack) -> None:
    """Lock the folder until `locked` closes, and write down what it holds.

    Cells whose partners are not known yet are written down later.

    Raises:
        UserError: The folder is in use or holds something else.
    """
    locked.enter_context(_locked(context.out, context.spec.out))
    _write_manifest(context)


def _write_manifest(context: RunContext) -> Manifest:
    """Write run.json, the manifest of this start and those before, and return it.

    Raises:
        UserError: The folder holds another run.
    """
    earlier = read_earlier(context.out)
    objects = context.spec.python_objects()
    other = context.other
    manifest = Manifest(
        spec=context.spec,
        identity=context.identity,
        cells={cell.id: cell.key for cell in context.cells if cell.is_planned},
        dataset=context.loaded_dataset,
        model=context.loaded_model,
        other=None if other is None else Other(model=other.loaded_model, identity=other.identity),
        objects=(*context.in_memory, *(item for kind in ("explainers", "metrics") for item in objects.get(kind, ()))),
        maps={key: entry for key, entry in context.maps.items() if isinstance(entry, str)},
    ).after(earlier)
    manifest.write(context.out)
    return manifest


def _with_partner_plans(context: RunContext, accelerator: Group, shown: bool) -> RunContext:
    """Add the plans of the metrics that ask for partners; for these, all samples are predicted first."""
    asking = [metric for metric in context.metrics if metric.declaration.plan is not None]
    if not asking:
        return context
    todo = agreed(accelerator, lambda: unpredicted(context))
    share = todo[_share(len(todo), accelerator)]
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


def _share(chunks: int, accelerator: Group) -> slice:
    """Return which of so many chunks this process computes: neighbours, so that later one file at a time is read."""
    index, processes = accelerator.process_index, accelerator.num_processes
    return slice(chunks * index // processes, chunks * (index + 1) // processes)


def _compute_chunks(context: RunContext, share: dict[int, Stored], shown: bool, processes: int) -> dict:
    """Predict, explain and score what is missing of these chunks, and return the seconds it took.

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
    known = {run.folder: predictions_of(run, prediction_parts(run).parts()) for run in context.of_both}
    probes: list[Probe] = []
    total = sum(map(len, todo.values()))
    with (
        bar(shown=shown and bool(todo), total=total, desc="explain", unit="batch") as advance,
        Writer(context, processes) as writer,
    ):
        for number, chunk in ahead(context.chunk, list(todo), waited.append):
            predicted = _predictions(context, number, chunk, known, writer)
            by_other = None
            if context.other is not None:
                by_other = _predictions(context.other, number, context.of_other(chunk), known, writer)
                of_predicted(context.other, chunk, by_other)  # which stops a strict run
            chunk = of_predicted(context, chunk, predicted)
            chosen = selected(context, number, predicted)
            # Before the first explainer touches the network, on images that this process has read anyway.
            if not probes and chunk.batch is not None and todo[number]:
                probes = [Probe(run.classifier, chunk.batch.images) for run in context.of_both]
            for explainer, outputs in todo[number].items():
                start = time.perf_counter()
                advance.set_postfix_str(explainer.name)
                # Outputs that lack the same samples share their maps.
                for positions, lacking in missing(chosen, outputs, share[number]).items():
                    writer.add_chunk(work(context, number, chunk, predicted, positions, lacking, by_other, probes))
                key = hash_of(explainer.identity)
                seconds[key] = seconds.get(key, 0.0) + time.perf_counter() - start
                advance.update()
    return {"explainers": seconds, "waiting_for_data": sum(waited)}


def _predictions(
    context: RunContext, number: int, chunk: Chunk, known: dict[str, StoredPredictions], writer: Writer
) -> list[dict]:
    """Return what the classifier says of a chunk: what files hold, or else what it says now, which is written."""
    if number in known[context.folder]:
        return known[context.folder].table(number).to_pylist()
    rows, result = predict(context, number, chunk)
    writer.add(prediction_parts(context), result)
    return rows


def _finish(context: RunContext, watch: Stopwatch, seconds: dict) -> dict:
    """Merge the part files, write all that follows from them unless it is there, and return the summary.

    Raises:
        UserError: No sample fits the selection, or a part was damaged or lost since the run computed it.
    """
    explained = merge(context)
    if not explained:
        raise UserError(f"no sample of the run fits --only {' '.join(context.spec.only or ())}")
    facts = _facts(context, explained)
    derived = derived_from(context.out, facts)
    if is_written(context.out, derived):
        return read_json(context.out / "summary.json")
    summary = summarise(facts)
    took = {"started": watch.started, "seconds": watch.seconds, "peak_memory": peak_memory(context.classifier.device)}
    write_json(context.out / "timings.json", took | seconds)
    cells = read_cells(summary["cells"])
    write_examples(context.out, context.run_id, cells, lambda index: context.classifier.prepare([context.rows[index]]))
    report([context.out])
    note_written(context.out, derived)
    return summary


def _facts(context: RunContext, explained: int) -> RunFacts:
    """Return what the summary says of a run beside its scores; `explained` samples are explained."""
    classifier, groups = context.classifier, context.question.groups
    return RunFacts(
        folder=context.out,
        dataset=context.dataset,
        split=context.spec.split,
        fingerprint=context.identity.fingerprint,
        samples=len(context.rows),
        used=context.data.count,
        only=None if context.spec.only is None else {"conditions": list(context.spec.only), "samples": explained},
        classes=len(context.question.names or ()),
        model=context.model,
        revision=classifier.revision,
        digest=classifier.digest,
        geometry=str(classifier.geometry),
        activation_assumed=classifier.assumed,
        model_classes=context.question.classes,
        no_accuracy=context.question.unlabelled or None,
        target=context.question.rule.name,
        groups=None if groups is None else {"name": groups.name, "identity": groups.identity},
        precision=context.identity.precision,
        seed=context.spec.seed,
        batch_size=context.spec.batch_size,
        provenance=provenance(classifier.device, _plugins((*context.explainers, *context.metrics)))
        | {"pixels_per_pass": PIXELS_PER_PASS[classifier.device.type]},
        dataset_title=context.data.source.title,
        dataset_repo=context.data.source.repo,
        dataset_revision=context.data.source.revision,
        model_repo=classifier.repo,
        other=None if context.other is None else _facts(context.other, explained),
    )


def _plugins(items: Iterable[Explainer | Metric]) -> list[str]:
    """Return the names of the other packages that add some of these."""
    return sorted({owner_of(item.version).partition(" ")[0] for item in items if owner_of(item.version)})


@contextmanager
def _locked(out: Path, name: str) -> Iterator[None]:
    """Let one run at a time write to a folder; the lock ends with its process.

    Args:
        out: the folder.
        name: the folder as it was given, for messages.

    Raises:
        UserError: Another run writes to it, or it cannot be written to.
    """
    check_run_folder(out)
    if (path := out / ".lock").is_symlink() or (path.exists() and not path.is_file()):
        raise UserError(f"{path} is a link or no regular file, so that {out} cannot be locked; delete it")
    lock = FileLock(path, timeout=0)
    try:
        out.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except Timeout as error:
        raise UserError(f"another run is writing to {name}; wait for it, or choose another --out") from error
    except OSError as error:
        raise UserError(f"cannot write to {name}: {error.strerror or error}; choose another --out") from error
    try:
        for stale in out.rglob(".*.tmp"):  # of a run that was killed while it wrote
            stale.unlink(missing_ok=True)
        yield
    finally:
        lock.release()
