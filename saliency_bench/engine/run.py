"""A run: every explainer and metric over a dataset, as a folder of cells.

    OUT/run.json           what the run is, and its cells
    OUT/predictions/       one file per chunk            -> predictions.parquet
    OUT/chunks/EXPLAINER/  one file per chunk            -> records.parquet
    OUT/thumbnails/        small maps for the report     -> examples.npz
    OUT/summary.json  timings.json  report.html

The unit of work is a chunk: `batch_size` consecutive samples, computed whole by one explainer and scored by all its
metrics. A part is written under a temporary name and renamed, so that what is there is whole; a run that is started
again computes what is missing. Adding an explainer or a metric adds cells and redoes none.
"""

import json
import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import datasets
import torch
from accelerate import Accelerator
from filelock import FileLock, Timeout

from saliency_bench.engine.chunks import by_explainer, explain, missing
from saliency_bench.engine.context import Cell, RunContext, check_counts, load_context
from saliency_bench.engine.examples import write_examples
from saliency_bench.engine.merging import merge
from saliency_bench.engine.predictions import is_predicted, predict
from saliency_bench.engine.reading import ahead
from saliency_bench.errors import UserError
from saliency_bench.explainer import Explainer, as_explainer
from saliency_bench.metric import Metric, load_metric
from saliency_bench.reports.page import report
from saliency_bench.results.cell import as_json, read_cells, read_plan
from saliency_bench.results.summary import RunFacts, summarise, table
from saliency_bench.types import Maps
from saliency_bench.utils.files import read_json, write_json
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


def run(
    *,
    dataset: str,
    model,
    explainers: Sequence[str | Explainer | Callable[..., Maps]],
    metrics: Sequence[str | Metric],
    out: str | Path,
    split: str = "test",
    target: str = "label",
    label_map: dict | str | Path | None = None,
    limit: int | None = None,
    batch_size: int = 16,
    seed: int = 0,
    device: str | None = None,
    progress: bool = True,
    strict: bool = False,
    precision: str | None = None,
    channels_last: bool | None = None,
    groups: dict | str | Path | None = None,
) -> Run:
    """Score every explainer by every metric and write records, summary and report to the folder `out`.

    dataset: a name or folder (`load_dataset`). model: what `load_classifier` takes. explainers, metrics: names, with
    options as "rise:masks=1000", or objects; an explainer may be any function (classifier, images, target) -> maps.
    target: "label", "predicted", "contrast:second" or a CSV file. groups: {group: [class, ...]} of the model's classes,
    or a file of it, for metrics and contrasts that ask for groups; those of ImageNet, pets, VOC and shapes are known.
    limit: the first N samples. batch_size: samples per chunk, the unit that is computed whole: where the limit cuts the
    last one, `forward_passes` of the summary count all of it, what was passed, and the scores its first samples only.
    strict: a sample that cannot be read, logits or a map that are not finite or an explainer that raises ends the run;
    else it is left out with its reason, and `summary["faults"]` counts it.

    precision, channels_last: how the network computes (`load_classifier`); both are part of a cell's identity.

    Started again with the same `out`, it computes what is missing. Raises: UserError for anything the caller can mend;
    `out` then holds nothing new but whole parts.
    """
    begun = time.time(), time.perf_counter()
    chosen = dict.fromkeys(as_explainer(explainer) for explainer in _listed(explainers))
    scorers = metrics_of(metrics)
    if len({explainer.identity for explainer in chosen}) < len(chosen):
        raise UserError("two explainers have the same name, options and code; give one of the functions another name")
    check_counts(batch_size, limit)
    accelerator = accelerator_on(device)
    context = load_context(
        dataset, model, split, target, label_map, batch_size, seed, accelerator.device, Path(out), strict=strict,
        precision=precision, channels_last=channels_last, groups=groups,
    )  # fmt: skip
    cells = [context.cell(explainer, metric) for explainer in chosen for metric in scorers]
    command = _command(dataset, model, split, target, label_map, limit, batch_size, seed, out, cells, precision,
                       channels_last, groups)  # fmt: skip
    return finish(context, cells, limit, accelerator, command, progress, begun)


def finish(
    context: RunContext,
    cells: list[Cell],
    limit: int | None,
    accelerator: Accelerator,
    command: str,
    progress: bool,
    begun: tuple[float, float],
) -> Run:
    """Compute what is missing of `cells` and write records, summary and report, as `run` does with what it has loaded.

    begun: (time, performance counter) when loading began.
    """
    samples = min(limit or len(context.rows), len(context.rows))
    chunks = range(-(-samples // context.batch_size))
    shown = progress and accelerator.is_local_main_process

    with ExitStack() as held:

        def begin() -> list[tuple[int, list[str]]]:
            held.enter_context(_alone(context.out))
            _claim(context, cells)
            wanted = {number: [cell.id for cell in missing(context, number, cells)] for number in chunks}
            return [(number, ids) for number, ids in wanted.items() if ids or not is_predicted(context, number)]

        todo = agreed(accelerator, begin)[accelerator.process_index :: accelerator.num_processes]
        ready = time.perf_counter()
        clock = _compute(context, {number: [cell for cell in cells if cell.id in ids] for number, ids in todo}, shown)
        accelerator.wait_for_everyone()
        clock["computing"] = time.perf_counter() - ready
        if not accelerator.is_main_process:
            return Run(context.out, {})
        merge(context, samples)
        summary = summarise(_facts(context, samples, command))
        write_json(
            context.out / "timings.json", {"started": begun[0], "seconds": time.perf_counter() - begun[1], **clock}
        )
        write_examples(
            context.out,
            read_cells(summary["cells"]),
            context.batch_size,
            lambda position: context.classifier.prepare([context.rows[position]]),
        )
        report([context.out])
    return Run(context.out, summary)


def _facts(context: RunContext, samples: int, command: str) -> RunFacts:
    classifier, groups = context.classifier, context.groups
    return RunFacts(
        folder=context.out,
        dataset=context.dataset,
        split=context.split,
        fingerprint=context.identity["fingerprint"],
        samples=len(context.rows),
        used=samples,
        classes=len(context.names),
        model=classifier.id,
        revision=classifier.revision,
        digest=classifier.digest,
        geometry=str(classifier.geometry),
        target=context.rule.name,
        groups=None if groups is None else {"name": groups.name, "identity": groups.identity},
        precision=context.identity["precision"],
        seed=context.seed,
        batch_size=context.batch_size,
        command=command,
        provenance=provenance(torch.device(classifier.device)),
    )


def _compute(context: RunContext, mine: dict[int, list[Cell]], shown: bool) -> dict:
    """Predict, explain and score what is missing of these chunks; the seconds it took."""
    waited: list[float] = []
    seconds: dict[str, float] = {}
    plan = {number: by_explainer(cells) for number, cells in mine.items()}
    with bar(shown=shown, total=sum(map(len, plan.values())), desc="explain", unit="batch") as advance:
        for number, chunk in ahead(context.chunk, list(plan), waited.append):
            predicted = predict(context, number, chunk)
            for explainer, wanted in plan[number].items():
                begun = time.perf_counter()
                advance.set_postfix_str(explainer.name)
                explain(context, number, chunk, predicted, explainer, wanted)
                seconds[str(explainer)] = seconds.get(str(explainer), 0.0) + time.perf_counter() - begun
                advance.update()
    return {"explainers": seconds, "waiting_for_data": sum(waited)}


@contextmanager
def _alone(out: Path) -> Iterator[None]:
    """One run writes to a folder at a time; the lock falls with its process. Raises: UserError naming the folder."""
    # A run that was killed at once leaves nothing but its lock and temporary files, which begin with a dot.
    strange = out.exists() and (not out.is_dir() or any(not path.name.startswith(".") for path in out.iterdir()))
    if strange and not (out / "run.json").exists():
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


def _claim(context: RunContext, cells: list[Cell]) -> None:
    """Write run.json, or add cells to it. Raises: UserError where the folder holds a run of something else."""
    path = context.out / "run.json"
    groups = None if context.groups is None else context.groups.identity
    # As JSON gives it back: tuples become lists.
    settings = json.loads(json.dumps(context.identity | {"batch_size": context.batch_size, "groups": groups}))
    planned = {cell.id: cell.key for cell in cells}
    if path.exists():
        before = read_json(path)
        if differing := [key for key in settings if before.get(key) != settings[key]]:
            what = {"fingerprint": "dataset", "classifier": "model", "groups": "set of groups"}.get(
                differing[0], differing[0]
            )
            raise UserError(f"{context.out} holds a run with another {what}; choose another --out")
        planned = read_plan(context.out) | planned
    write_json(path, settings | {"cells": dict(zip(planned, as_json(planned.values()), strict=True))})


def _command(
    dataset, model, split, target, label_map, limit, batch_size, seed, out, cells: list[Cell], precision, channels_last,
    groups,
) -> str:  # fmt: skip
    """The command line that makes this run again; a run of own functions or modules has none, and says so."""
    if not isinstance(model, str | Path) or isinstance(label_map, dict) or isinstance(groups, dict):
        return "saliency_bench.run (a model, label map or groups given as a Python object)"
    explainers = list(dict.fromkeys(str(cell.explainer) for cell in cells))
    if own := [cell.explainer for cell in cells if isinstance(cell.explainer.version, str)]:
        return f"saliency_bench.run ({own[0]} is a Python function)"
    words = ["saliency-bench", "run", "--dataset", str(dataset), "--model", str(model), "--explainers", *explainers,
             "--metrics", *dict.fromkeys(str(cell.metric) for cell in cells), "--split", split,
             "--target", target]  # fmt: skip
    words += ["--label-map", str(label_map)] if label_map else []
    words += ["--groups", str(groups)] if groups else []
    words += ["--limit", str(limit)] if limit else []
    words += ["--precision", precision] if precision else []
    words += ["--channels-last"] if channels_last else []
    words += ["--batch-size", str(batch_size), "--seed", str(seed), "--out", str(out)]
    return shlex.join(words)


def metrics_of(metrics: str | Metric | Sequence[str | Metric]) -> list[Metric]:
    """Each once. Raises: UserError for none, or an unknown one."""
    return list(dict.fromkeys(m if isinstance(m, Metric) else load_metric(m) for m in _listed(metrics)))


def _listed(thing) -> list:
    listed = [thing] if isinstance(thing, str | Explainer | Metric) or callable(thing) else list(thing)
    if not listed:
        raise UserError("a run needs at least one explainer and one metric")
    return listed
