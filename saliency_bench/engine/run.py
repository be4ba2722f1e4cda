"""A run: every explainer and metric over a dataset, as a folder of cells.

    OUT/run.json           settings, identity and cells: `Manifest`
    OUT/predictions/       one file per chunk            -> predictions.parquet
    OUT/chunks/EXPLAINER/  one file per chunk            -> records.parquet
    OUT/thumbnails/        small maps for the report     -> examples.npz
    OUT/summary.json  timings.json  report.html

The unit of work is a chunk: `batch_size` consecutive samples, computed whole by one explainer and scored by all its
metrics. A file is written under a temporary name and renamed, so that every file is complete; a run that is started
again computes what is missing. Adding an explainer or a metric adds cells and redoes none.
"""

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import datasets
import torch
from accelerate import Accelerator
from filelock import FileLock, Timeout

from saliency_bench.engine.chunks import by_explainer, explain_and_score, missing
from saliency_bench.engine.context import Cell, RunContext, load
from saliency_bench.engine.examples import write_examples
from saliency_bench.engine.merging import merge
from saliency_bench.engine.predictions import is_predicted, predict
from saliency_bench.engine.python_objects import Objects, describe
from saliency_bench.engine.reading import ahead
from saliency_bench.errors import UserError
from saliency_bench.reports.page import report
from saliency_bench.results.cell import read_cells
from saliency_bench.results.manifest import MANIFEST, Manifest, read_manifest
from saliency_bench.results.summary import RunFacts, summarise, table
from saliency_bench.spec import RunSpec, takes_settings
from saliency_bench.utils.files import write_json
from saliency_bench.utils.processes import accelerator_on, agreed
from saliency_bench.utils.progress import bar
from saliency_bench.utils.provenance import provenance


@dataclass(frozen=True)
class Run:
    """A finished run: its folder and its summary; `records()` gives the rows."""

    folder: Path
    summary: dict

    @property
    def report(self) -> Path:
        return self.folder / "report.html"

    def records(self) -> datasets.Dataset:
        return datasets.Dataset.from_parquet(str(self.folder / "records.parquet"), keep_in_memory=True)

    def __str__(self) -> str:
        return table(read_cells(self.summary["cells"]), self.summary["dataset"]["used"])


@dataclass(frozen=True)
class Stopwatch:
    """When it was created, and the seconds since then, whatever happens to the system clock."""

    started: float = field(default_factory=lambda: time.time())
    counter: float = field(default_factory=lambda: time.perf_counter())

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.counter


@takes_settings()
def run(*, progress: bool = True, **settings: Any) -> Run:
    """Score every explainer by every metric and write records, summary and report to the folder `out`.

    SETTINGS
    progress: show a bar.

    Python objects may stand in the place of names: an explainer, or any function (classifier, images, target) -> maps;
    a metric; a torch module or what `load_classifier` gives; a dict as label map or groups. `precision` and
    `channels_last` are part of a cell's identity; limit, batch_size, strict, device and out are not. Where `limit` cuts
    the last chunk, `forward_passes` of the summary count all of it, and the scores its first samples only.
    `summary["faults"]` counts what was left out because it failed.

    Started again with the same `out`, it computes what is missing.
    Raises: UserError for anything the caller can fix; `out` then holds nothing new but complete chunks.
    """
    return start(*describe(settings), progress=progress)


def start(spec: RunSpec, objects: Objects, *, progress: bool = True) -> Run:
    """`run` of settings that are written down; objects: the Python objects that they mention."""
    watch = Stopwatch()
    if not spec.explainers or not spec.metrics:
        raise UserError("a run needs at least one explainer and one metric")
    accelerator = accelerator_on(spec.device)
    return compute(load(spec, objects, accelerator.device), accelerator, watch, progress=progress)


def compute(context: RunContext, accelerator: Accelerator, watch: Stopwatch, *, progress: bool = True) -> Run:
    """Compute what is missing of all cells, each process its share; then write records, summary and report.

    watch: started when loading began.
    """
    cells = context.cells  # before anything is written: a metric may not fit
    with ExitStack() as held:
        todo = agreed(accelerator, lambda: _claim(context, cells, held))
        todo = todo[accelerator.process_index :: accelerator.num_processes]
        share = {number: [cell for cell in cells if cell.id in ids] for number, ids in todo}
        start = time.perf_counter()
        seconds = _compute_chunks(context, share, progress and accelerator.is_local_main_process)
        accelerator.wait_for_everyone()
        seconds["computing"] = time.perf_counter() - start
        summary = _write_results(context, watch, seconds) if accelerator.is_main_process else {}
    return Run(context.out, summary)


def _claim(context: RunContext, cells: list[Cell], held: ExitStack) -> list[tuple[int, list[str]]]:
    """Lock the folder until `held` closes and write down what it holds; the chunks to compute, with their cells' ids.

    Raises: UserError where the folder is in use or holds something else.
    """
    held.enter_context(_locked(context.out))
    earlier = read_manifest(context.out) if (context.out / MANIFEST).exists() else None
    plan = {cell.id: cell.key for cell in cells}
    Manifest(spec=context.spec, identity=context.identity, cells=plan).after(earlier).write(context.out)
    wanted = {number: [cell.id for cell in missing(context, number, cells)] for number in context.chunks}
    return [(number, ids) for number, ids in wanted.items() if ids or not is_predicted(context, number)]


def _compute_chunks(context: RunContext, share: dict[int, list[Cell]], shown: bool) -> dict:
    """Predict, explain and score what is missing of these chunks; the seconds it took."""
    waited: list[float] = []
    seconds: dict[str, float] = {}
    plan = {number: by_explainer(cells) for number, cells in share.items()}
    with bar(shown=shown, total=sum(map(len, plan.values())), desc="explain", unit="batch") as advance:
        for number, chunk in ahead(context.chunk, list(plan), waited.append):
            predicted = predict(context, number, chunk)
            for explainer, wanted in plan[number].items():
                start = time.perf_counter()
                advance.set_postfix_str(explainer.name)
                explain_and_score(context, number, chunk, predicted, explainer, wanted)
                seconds[str(explainer)] = seconds.get(str(explainer), 0.0) + time.perf_counter() - start
                advance.update()
    return {"explainers": seconds, "waiting_for_data": sum(waited)}


def _write_results(context: RunContext, watch: Stopwatch, seconds: dict) -> dict:
    """Merge the chunk files and write everything that follows from them; returns the summary."""
    merge(context)
    summary = summarise(_facts(context))
    write_json(context.out / "timings.json", {"started": watch.started, "seconds": watch.seconds, **seconds})
    cells = read_cells(summary["cells"])
    write_examples(
        context.out, cells, context.spec.batch_size, lambda index: context.classifier.prepare([context.rows[index]])
    )
    report([context.out])
    return summary


def _facts(context: RunContext) -> RunFacts:
    classifier, groups = context.classifier, context.groups
    return RunFacts(
        folder=context.out,
        dataset=context.dataset,
        split=context.spec.split,
        fingerprint=context.identity.fingerprint,
        samples=len(context.rows),
        used=context.samples,
        classes=len(context.names),
        model=classifier.id,
        revision=classifier.revision,
        digest=classifier.digest,
        geometry=str(classifier.geometry),
        target=context.rule.name,
        groups=None if groups is None else {"name": groups.name, "identity": groups.identity},
        precision=context.identity.precision,
        seed=context.spec.seed,
        batch_size=context.spec.batch_size,
        command=context.spec.command(),
        provenance=provenance(torch.device(classifier.device)),
    )


@contextmanager
def _locked(out: Path) -> Iterator[None]:
    """One run writes to a folder at a time; the lock ends with its process. Raises: UserError naming the folder."""
    # A run that was killed at once leaves only its lock and temporary files, which begin with a dot.
    foreign = out.exists() and (not out.is_dir() or any(not path.name.startswith(".") for path in out.iterdir()))
    if foreign and not (out / MANIFEST).exists():
        raise UserError(f"{out} exists and is not a run of saliency-bench; choose another --out")
    lock = FileLock(out / ".lock", timeout=0)
    try:
        out.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except Timeout as error:
        raise UserError(f"another run is writing to {out}; wait for it, or choose another --out") from error
    except OSError as error:
        raise UserError(f"cannot write to {out}: {error.strerror or error}; choose another --out") from error
    try:
        for stale in out.rglob(".*.tmp"):  # of a run that was killed while it wrote
            stale.unlink(missing_ok=True)
        yield
    finally:
        lock.release()
