"""Does what is missing of a suite, run after run: trains, scores, and lays out the tables of what is there.

A run that fails is named with its reason and stops no other; started again, only what is missing is done. Several
processes share the chunks of each run, or make whole runs side by side, whichever is done earlier.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from accelerate.utils import gather_object

from saliency_bench.engine.python_objects import describe
from saliency_bench.engine.run import start
from saliency_bench.engine.suites.jobs import Choice, Job, Network
from saliency_bench.engine.suites.plan import Step, side_by_side
from saliency_bench.engine.suites.transforms import measure
from saliency_bench.engine.training import train
from saliency_bench.errors import UserError, described
from saliency_bench.utils.messages import complain
from saliency_bench.utils.processes import Alone, Group, accelerator_on, agreed, wait_for_all


@dataclass(frozen=True)
class Done:
    """What became of the jobs. failed: {folder: why}, of networks and runs."""

    jobs: list[Job]
    failed: dict[Path, str] = field(default_factory=dict)


def work(steps: Sequence[Step], choice: Choice, progress: bool, said: Callable[[str], None]) -> Done:
    """Train and run what is missing of a plan. said: called with a line on each step.

    Raises: UserError where networks are to be trained by several processes.
    """
    jobs = [step.job for step in steps]
    accelerator = accelerator_on(choice.device)
    networks = {network.out: network for job in jobs for network in job.networks}
    todo = [network for network in networks.values() if not network.is_done]
    if todo and accelerator.num_processes > 1:
        raise UserError(
            f"{len(todo)} networks must be trained first, by a single process: start this suite once with --train-only "
            "and without torchrun or accelerate launch"
        )
    failed: dict[Path, str] = {}
    for number, network in enumerate(todo, 1):
        said(f"training {number} of {len(todo)}: {network.out.name} on {network.out.parent.name}")
        _try(partial(_train, network, choice, progress), network.out, failed)
    if choice.train_only:
        return Done(jobs, failed)
    shares = agreed(accelerator, lambda: side_by_side(steps, accelerator.num_processes))
    group: Group = Alone(accelerator.device) if shares else accelerator
    if shares:
        said(f"{accelerator.num_processes} processes make whole runs side by side")
    for number in shares[accelerator.process_index] if shares else range(len(jobs)):
        job = jobs[number]
        said(f"run {number + 1} of {len(jobs)}: {job.folder.name}")
        if untrained := [network.out for network in job.networks if network.out in failed]:
            failed[job.folder] = f"its network {untrained[0].name} was not trained"
            continue
        _try(partial(_run, job, progress and accelerator.is_local_main_process, group), job.folder, failed)
    wait_for_all(accelerator)
    return Done(jobs, dict(gather_object(list(failed.items()))) if shares else failed)


def _run(job: Job, progress: bool, group: Group) -> None:
    start(*describe(dict(job.spec)), progress=progress, group=group)
    if group.is_main_process:
        measure(job)
    wait_for_all(group)


def _train(network: Network, choice: Choice, progress: bool) -> None:
    recipe = network.recipe.model_dump()
    train(dataset=network.dataset, model=network.start, out=network.out, label_column=network.label,
          device=choice.device, progress=progress, **recipe)  # fmt: skip


def _try(step: Callable[[], object], folder: Path, failed: dict[Path, str]) -> None:
    """Do it; what goes wrong is said and written down, and stops nothing else."""
    try:
        step()
    except UserError as error:
        failed[folder] = str(error)
    except Exception as error:
        failed[folder] = described(error)
    if folder in failed:
        complain(f"{folder.name} failed: {failed[folder]}")
