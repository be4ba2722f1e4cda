"""`sb.suite` and its command: plan a suite, train the missing networks, compute the missing runs, and write the tables.

If a run fails, its error message is reported and the other runs continue. If the call is repeated, only the missing
work is done. Several processes either share the batches of each run or compute entire runs in parallel, whichever is
faster.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from accelerate.utils import gather_object

from saliency_bench import registry
from saliency_bench.compute.python_objects import describe
from saliency_bench.compute.run import start
from saliency_bench.compute.training import train
from saliency_bench.data.build_report import REPORT, read_report
from saliency_bench.errors import UserError, described
from saliency_bench.read.analysis.order_agreement import read_answers
from saliency_bench.read.report import words
from saliency_bench.read.run_folder import read_summary
from saliency_bench.read.summary import aligned
from saliency_bench.recipes.suites import smoke as smoke_data
from saliency_bench.recipes.suites.drawing import Section, section_of, write_page
from saliency_bench.recipes.suites.numbers import Results
from saliency_bench.recipes.suites.suite_jobs import Network, SuiteChoice, SuiteJob, data_of, jobs_of, selection
from saliency_bench.recipes.suites.suite_pictures import draw_picture
from saliency_bench.recipes.suites.suite_plan import Step, check_sources, plan_notes, plan_of, plan_rows, side_by_side
from saliency_bench.recipes.suites.suite_schema import Suite, find_suite
from saliency_bench.recipes.suites.suite_settings import settings_table
from saliency_bench.recipes.suites.suite_tables import SMOKE, SuiteTable, as_csv, check_figures, make_table
from saliency_bench.recipes.suites.t_tests import remarks, t_tests
from saliency_bench.recipes.suites.transformed_runs import measure
from saliency_bench.spec import PREDICTED_BY
from saliency_bench.utils.files import write_text
from saliency_bench.utils.messages import complain
from saliency_bench.utils.processes import Alone, ProcessGroup, accelerator_on, agreed, wait_for_all
from saliency_bench.utils.progress import step
from saliency_bench.utils.untouched import untouched


@dataclass(frozen=True, repr=False)
class SuiteResult:
    """The result of a suite.

    Attributes:
        folder: The folder that contains all files.
        tables: The tables that were written.
        jobs: The runs.
        failed: {folder of a network or run: error message}.
        pictures: Names of the pictures drawn into the `pictures` folder.
    """

    folder: Path
    tables: list[SuiteTable]
    jobs: list[SuiteJob]
    failed: dict[Path, str] = field(default_factory=dict)
    pictures: list[str] = field(default_factory=list)

    @property
    def page(self) -> Path:
        """Path of the page with all tables."""
        return self.folder / "suite.html"

    def __str__(self) -> str:
        return "\n".join(table.markdown() for table in self.tables)

    __repr__ = __str__

    def as_json(self) -> dict[str, Any]:
        """Return the tables and failures as the command's JSON output."""
        tables = [{"table": table.name, "smoke": table.smoke, "numbers": table.records, "notes": table.notes}
                  for table in self.tables]  # fmt: skip
        return {"tables": tables, "failed": {str(folder): why for folder, why in self.failed.items()}}


@dataclass(frozen=True, repr=False)
class Plan:
    """The plan of a suite, with one step per run."""

    steps: list[Step]

    def as_json(self) -> list[dict[str, Any]]:
        """Return the plan as the command's JSON output."""
        names = ("dataset", "model", "images", "cells", "done", "passes", "seconds", "megabytes", "missing")
        return [
            {"run": step.job.folder.name} | {name: getattr(step, name) for name in names}
            | {"cost": None if step.cost is None else asdict(step.cost)}
            for step in self.steps
        ]  # fmt: skip

    def __str__(self) -> str:
        return "\n".join([aligned(plan_rows(self.steps)), "", *plan_notes(self.steps)])

    __repr__ = __str__


def planned(name: str, **options: Any) -> Plan:
    """Return the plan that `suite` would follow with these options, including its cost. Nothing is trained or run."""
    _, _, _, choice, jobs = _choose(name, **options)
    return Plan(plan_of(jobs, choice))


@untouched()
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
    """Reproduce one or all tables of a paper: train missing networks, compute missing runs, and write the tables.

    If the call is repeated, only the missing work is done. If a run fails, it is listed in `failed`, and the other runs
    continue.

    Args:
        name: Name of a suite (`p0`) or of a table (`p0-table2`), or your own YAML file (FILE.yaml or FILE.yaml:TABLE).
        out: Output folder for models, runs and tables. All tables share it.
        data: Folder with one subfolder per built dataset.
        select: Restriction to parts of the suite, such as "dataset=pet-xai explainer=gradcam" (axes dataset, model,
            explainer, metric).
        limit: Maximum number of samples per run.
        batch_size: Samples per batch in all runs.
        device: Device for all runs.
        smoke: Whether to use synthetic images and small networks, with which the tables are finished in minutes.
        answers: Files with people's answers, written by `peekaboom export`. They are required for tables about how
            people use the maps.
        compare: Whether to show the paper's numbers and the differences from them.
        train_only: If true, train the networks but skip the runs.
        progress: Whether to show progress bars.

    Raises:
        UserError: The name is unknown, a file is not a suite, or sources are missing.
    """
    path, content, tables, choice, jobs = _choose(
        name, out=out, data=data, select=select, limit=limit, batch_size=batch_size, device=device, smoke=smoke,
        answers=answers,
    )  # fmt: skip
    is_main = accelerator_on(device).is_main_process
    steps = plan_of(jobs, choice, measured=False)
    check_sources(steps)
    say = step if is_main and progress else lambda line: None
    for line in plan_notes(steps):
        say(line)
    failed = work(steps, choice, progress, say, train_only)
    if is_main and not train_only:
        return _write(name, path, content, tables, choice, jobs, failed, compare)
    return SuiteResult(choice.out, [], jobs, failed)


def _write(
    name: str, path: Path, content: Suite, tables: tuple[str, ...], choice: SuiteChoice, jobs: list[SuiteJob],
    failed: dict[Path, str], compare: bool,
) -> SuiteResult:  # fmt: skip
    """Write the tables, pictures, settings and page, based on the runs that exist."""
    for folder in (choice.out, choice.out / "tables", choice.out / "pictures"):
        for stale in folder.glob(".*.tmp"):  # remove files left by a suite that was killed while writing
            stale.unlink(missing_ok=True)
    written = write_tables(content, tables, choice, failed, compare)
    pictures = draw_pictures(content, tables, choice, failed)
    settings = settings_table(name, content, tables)
    mark = f"{SMOKE}\n\n" if choice.smoke else ""
    write_text(choice.out / "tables" / f"{path.stem}.settings.md", mark + settings.markdown())
    title = f"{name}, smoke test" if choice.smoke else name
    page = choice.out / "suite.html"
    write_page(
        page, title, content.paper, [*(section_of(table, choice.out / "pictures") for table in written), *pictures],
        plan_of(jobs, choice, measured=False), settings.texts(), failed, choice.smoke,
    )  # fmt: skip
    return SuiteResult(choice.out, written, jobs, failed, [section.name for section in pictures if section.plot])


def _choose(
    name: str,
    *,
    out: str | Path,
    data: str | Path = ".",
    select: str | Iterable[str] = (),
    answers: str | Path | Iterable[str | Path] = (),
    **settings: Any,
) -> tuple[Path, Suite, tuple[str, ...], SuiteChoice, list[SuiteJob]]:
    """Return (path of the suite's file, its content, selected tables, choice, runs).

    Under --smoke, also create the synthetic datasets and configs.
    """
    path, content, tables = find_suite(name)
    conditions = selection([select] if isinstance(select, str) else select)
    files = [Path(file) for file in ([answers] if isinstance(answers, str | Path) else answers)]
    settings |= {"answers": [read_answers(file) for file in files]}
    choice = SuiteChoice(Path(out), Path(data), conditions, **settings)
    if not choice.data.is_dir():
        raise UserError(f"there is no folder '{choice.data}'; set --data to the folder that contains built datasets")
    check_figures(content, tables)
    _check_not_mixed(content, choice)
    jobs = jobs_of(content, tables, choice)
    if choice.smoke:
        smoke_data.prepare(content, tables, choice)
    return path, content, tables, choice, jobs


def _check_not_mixed(content: Suite, choice: SuiteChoice) -> None:
    """Check that smoke-test results and real results are in separate folders.

    Raises:
        UserError: The folder contains results of the other type, or a dataset's folder contains a different dataset.
    """
    is_smoke = (choice.out / "data" / "networks").is_dir()
    if choice.smoke != is_smoke and any((choice.out / name).is_dir() for name in ("runs", "tables", "data")):
        stored, new = ("results of --smoke", "real runs") if is_smoke else ("real runs", "results of --smoke")
        raise UserError(f"{choice.out} contains {stored}, which cannot be mixed with {new}; choose a different --out")
    for name, entry in content.datasets.items():
        folder = Path(data_of(entry, name, choice))
        if choice.smoke or not (folder / REPORT).is_file() or entry.name not in registry.files("hub_builders"):
            continue
        if (built := read_report(folder)["dataset"]) != entry.name:
            raise UserError(
                f"{folder} should contain {entry.name}, but was built by `saliency-bench build {built}`; set --data to "
                "the folder of the real datasets"
            )


def work(
    steps: Sequence[Step], choice: SuiteChoice, progress: bool, say: Callable[[str], None], train_only: bool
) -> dict[Path, str]:
    """Train the networks and compute the runs of a plan that are not finished.

    Args:
        steps: The plan.
        choice: The selected parts and settings of the suite.
        progress: Whether to show progress bars.
        say: Function that prints a message before each step.
        train_only: Whether to skip the runs.

    Returns:
        {folder of a network or run: error message}.

    Raises:
        UserError: Networks must be trained, but several processes were started.
    """
    jobs = [item.job for item in steps]
    accelerator = accelerator_on(choice.device)
    # Networks that other networks start from are last in a job's list but must be trained first.
    networks = {network.out: network for job in jobs for network in reversed(job.networks)}
    untrained = [network for network in networks.values() if not network.is_done]
    if untrained and accelerator.num_processes > 1:
        raise UserError(
            f"{len(untrained)} networks must be trained first, by a single process; run this suite once with "
            "--train-only and without torchrun or accelerate launch"
        )
    failed: dict[Path, str] = {}
    for number, network in enumerate(untrained, 1):
        say(f"training {number} of {len(untrained)}: {network.out.name} on {network.out.parent.name}")
        if (start := Path(network.start)) in failed:
            failed[network.out] = f"training starts from the network {start.name}, which was not trained"
            continue
        _attempt(partial(_train, network, choice, progress), network.out, failed)
    if train_only:
        return failed
    shares = agreed(accelerator, lambda: side_by_side(steps, accelerator.num_processes))
    group: ProcessGroup = Alone(accelerator.device) if shares else accelerator
    if shares:
        say(f"{accelerator.num_processes} processes compute whole runs in parallel")
    numbers = shares[accelerator.process_index] if shares else range(len(jobs))
    for number in numbers:
        job = jobs[number]
        say(f"run {number + 1} of {len(jobs)}: {job.folder.name}")
        if without := [network.out.name for network in job.networks if network.out in failed]:
            failed[job.folder] = f"the network {without[0]} was not trained"
            continue
        _attempt(partial(_run, job, progress and accelerator.is_local_main_process, group), job.folder, failed)
    wait_for_all(accelerator)
    return dict(gather_object(list(failed.items()))) if shares else failed


def _run(job: SuiteJob, progress: bool, group: ProcessGroup) -> None:
    """Compute a run, and measure the accuracies under image transforms that the tables need."""
    spec = dict(job.spec)
    if job.named_by is not None and _covers(job.named_by, job.spec.limit):
        spec["target"] = f"{PREDICTED_BY}{job.named_by}"  # instead of predicting the samples again
    start(*describe(spec), progress=progress, group=group)
    if group.is_main_process:
        measure(job)
    wait_for_all(group)


def _covers(folder: Path, limit: int | None) -> bool:
    """Return whether a finished run contains predictions for all samples that a run with this limit would have."""
    try:
        dataset = read_summary(folder)["dataset"]
    except UserError:
        return False
    return dataset["used"] >= (dataset["samples"] if limit is None else min(limit, dataset["samples"]))


def _train(network: Network, choice: SuiteChoice, progress: bool) -> None:
    """Train a network with the suite's recipe. If training was interrupted, resume it."""
    recipe = network.recipe.model_dump()
    train(dataset=network.dataset, model=network.start, out=network.out, label_column=network.label,
          device=choice.device, progress=progress, **recipe)  # fmt: skip


def _attempt(task: Callable[[], object], folder: Path, failed: dict[Path, str]) -> None:
    """Run a task. If it fails, print the error and store it in `failed` instead of raising it."""
    try:
        task()
    except UserError as error:
        failed[folder] = str(error)
    except Exception as error:
        failed[folder] = described(error)
    if folder in failed:
        complain(f"{folder.name} failed: {failed[folder]}")


def write_tables(
    content: Suite, tables: Iterable[str], choice: SuiteChoice, failed: dict[Path, str], compare: bool
) -> list[SuiteTable]:
    """Write the tables from all existing runs, including those that only an earlier command selected."""
    jobs = jobs_of(content, tables, replace(choice, select={}))
    results = Results(content, jobs, choice, failed)
    written = []
    for name in (name for name in tables if name in content.tables):
        about = _remarks(content, results, content.tables[name].runs) if content.tables[name].needs_runs else []
        if content.tables[name].t_test:
            compared = t_tests(results, name)
            about += remarks(compared)
            write_text(choice.out / "tables" / f"{name}.t-tests.csv", as_csv(compared, choice.smoke))
        written.append(make_table(name, results, compare, about))
        written[-1].write(choice.out / "tables")
    return written


def draw_pictures(content: Suite, names: Iterable[str], choice: SuiteChoice, failed: dict[Path, str]) -> list[Section]:
    """Draw the pictures from the existing runs as PDF, SVG and PNG. Return them as sections of the page."""
    sections = []
    for name in (name for name in names if name in content.pictures):
        results = Results(content, jobs_of(content, [name], replace(choice, select={})), choice, failed)
        svg, notes = draw_picture(results, name, choice.out / "pictures")
        sections.append(Section(name, content.pictures[name].title, notes, svg))
    return sections


def _remarks(content: Suite, results: Results, runs: Sequence[str]) -> list[str]:
    """Return the remarks below a table: which datasets were only partly used, and how accurate each classifier is."""
    accuracies: dict[tuple[str, str], str] = {}
    used: dict[str, tuple[int, int]] = {}
    for job, run in results.finished(runs):
        dataset, model = (content.names.get(name, name) for name in (job.dataset, job.model))
        accuracies[job.dataset, job.model] = f"{model} on {dataset} {words.number(run.accuracy.value)}"
        count = run.summary["dataset"]["used"], run.summary["dataset"]["samples"]
        if count[0] < count[1]:
            used[job.dataset] = min(used.get(job.dataset, count), count)
    limits = ", ".join(f"{count[0]} of {count[1]} in {content.names.get(name, name)}" for name, count in used.items())
    remarks = [f"Not all images were used: {limits}."] if limits else []
    return remarks + ([f"Accuracy of the classifiers: {', '.join(accuracies.values())}."] if accuracies else [])
