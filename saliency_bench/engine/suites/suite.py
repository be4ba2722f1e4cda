"""`sb.suite` and the command: plan, work, tables and page of a suite."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from saliency_bench.engine.suites import smoke as smoke_data
from saliency_bench.engine.suites.crowd import Crowd
from saliency_bench.engine.suites.drawing import write_page
from saliency_bench.engine.suites.grids import check_figures, grid_of
from saliency_bench.engine.suites.jobs import Choice, Job, jobs_of, selection
from saliency_bench.engine.suites.layout import Laid
from saliency_bench.engine.suites.numbers import Scores
from saliency_bench.engine.suites.plan import Step, check_sources, plan_notes, plan_of, plan_rows
from saliency_bench.engine.suites.schema import Suite, find_suite
from saliency_bench.engine.suites.working import work
from saliency_bench.errors import UserError
from saliency_bench.reports import words
from saliency_bench.results.summary import aligned
from saliency_bench.utils.processes import accelerator_on
from saliency_bench.utils.progress import step


@dataclass(frozen=True, repr=False)
class SuiteResult:
    """What a suite came to. tables: those it laid out; failed: {folder: why}; page: suite.html."""

    folder: Path
    tables: list[Laid]
    jobs: list[Job]
    failed: dict[Path, str] = field(default_factory=dict)

    @property
    def page(self) -> Path:
        return self.folder / "suite.html"

    def __str__(self) -> str:
        return "\n".join(laid.markdown() for laid in self.tables)

    __repr__ = __str__

    def as_json(self) -> dict[str, Any]:
        tables = [{"table": one.grid.name, "numbers": one.rows, "notes": one.notes} for one in self.tables]
        return {"tables": tables, "failed": {str(folder): why for folder, why in self.failed.items()}}


@dataclass(frozen=True, repr=False)
class Plan:
    """What a suite would do: a step per run."""

    steps: list[Step]

    def as_json(self) -> list[dict[str, Any]]:
        names = ("dataset", "model", "images", "cells", "done", "passes", "hours", "megabytes", "missing")
        return [{"run": step.job.folder.name} | {name: getattr(step, name) for name in names} for step in self.steps]

    def __str__(self) -> str:
        return "\n".join([aligned(plan_rows(self.steps)), "", *plan_notes(self.steps)])

    __repr__ = __str__


def planned(name: str, **options: Any) -> Plan:
    """What `suite` would do with these options, and what it costs. Nothing is trained or run."""
    _, _, choice, jobs = _chosen(name, **options)
    return Plan(plan_of(jobs, choice))


def _chosen(
    name: str,
    *,
    out: str | Path,
    data: str | Path = ".",
    select: str | Iterable[str] = (),
    answers: str | Path | Iterable[str | Path] = (),
    **of_all_runs: Any,
) -> tuple[Suite, tuple[str, ...], Choice, list[Job]]:
    _, found, tables = find_suite(name)
    conditions = selection([select] if isinstance(select, str) else select)
    files = tuple(map(Path, [answers] if isinstance(answers, str | Path) else answers))
    choice = Choice(Path(out), Path(data), conditions, crowd=Crowd.read(files), **of_all_runs)
    if not choice.data.is_dir():
        raise UserError(f"there is no folder '{choice.data}'; give --data the folder that holds built datasets")
    check_figures(found, tables)
    jobs = jobs_of(found, tables, choice)
    if choice.smoke:
        smoke_data.prepare(found, jobs, choice)
    return found, tables, choice, jobs


def suite(
    name: str,
    *,
    out: str | Path,
    data: str | Path = ".",
    select: str | Iterable[str] = (),
    limit: int | None = None,
    batch_size: int | None = None,
    device: str | None = None,
    smoke: bool = False,
    answers: str | Path | Iterable[str | Path] = (),
    compare: bool = False,
    train_only: bool = False,
    progress: bool = True,
) -> SuiteResult:
    """Make a table of a paper, or all of them: train and run what is missing under `out`, and lay out the tables.

    name: of a suite (`p0`) or a table (`p0-table2`), or a YAML file of your own (FILE.yaml, FILE.yaml:TABLE).
    out: folder of models, runs and tables, shared by all tables. data: folder that holds built datasets by name.
    select: parts of it, "dataset=pet-xai explainer=gradcam" (axes dataset, model, explainer, metric).
    limit, batch_size, device: of all runs. smoke: the same tables in minutes, on drawn pictures with small networks.
    answers: files with answers of people (`peekaboom export`), for tables that show what they make of the maps.
    compare: with the paper's figures and the differences. train_only: leave out the runs.

    Started again, it does what is missing. A run that fails is in `failed` and stops no other.
    Raises: UserError for an unknown name, a file that is no suite, or sources that are missing.
    """
    found, tables, choice, jobs = _chosen(
        name, out=out, data=data, select=select, limit=limit, batch_size=batch_size, device=device, smoke=smoke,
        train_only=train_only, answers=answers,
    )  # fmt: skip
    steps = plan_of(jobs, choice, measured=False)
    check_sources(steps)
    main = accelerator_on(device).is_main_process
    said = step if main and progress else lambda line: None
    for line in plan_notes(steps):
        said(line)
    done = work(steps, choice, progress, said)
    laid = [] if train_only or not main else lay_out(found, tables, choice, done.failed, compare)
    if laid:
        title = f"{name}, smoke size" if smoke else name
        write_page(choice.out / "suite.html", title, found.paper, laid, plan_of(jobs, choice, measured=False),
                   done.failed, smoke)  # fmt: skip
    return SuiteResult(choice.out, laid, jobs, done.failed)


def lay_out(found: Suite, tables: Iterable[str], choice: Choice, failed: dict[Path, str], compare: bool) -> list[Laid]:
    """The tables of what is there, written: also of runs that an earlier start has made and this one leaves out."""
    jobs = jobs_of(found, tables, replace(choice, select={}))
    scores = Scores(found, jobs, choice.smoke, {str(folder): why for folder, why in failed.items()},
                    choice.crowd)  # fmt: skip
    laid = []
    for table in tables:
        accuracies = ", ".join(
            f"{found.names.get(model, model)} on {found.names.get(dataset, dataset)} {words.number(one.value)}"
            for (dataset, model), one in scores.accuracies(found.tables[table].runs).items()
        )
        limits = ", ".join(
            f"{used} of {samples} of {found.names.get(dataset, dataset)}"
            for dataset, (used, samples) in scores.limited(found.tables[table].runs).items()
        )
        about = [f"Not all images: {limits}."] * bool(limits)
        about += [f"Accuracy of the classifiers: {accuracies}."] * bool(accuracies)
        laid.append(Laid(grid_of(table, scores), found.names, compare, about))
        laid[-1].write(choice.out / "tables")
    return laid
