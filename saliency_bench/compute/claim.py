"""Lock the folder of a run against other writers, and write its run.json."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from saliency_bench.compute.context import RunContext
from saliency_bench.compute.fixed_answers import answers_of
from saliency_bench.compute.preflight import check_run_folder
from saliency_bench.errors import UserError
from saliency_bench.read.manifest import Manifest, OtherIdentity, read_earlier
from saliency_bench.read.network_answers import NetworkAnswers, Role


def write_manifest(context: RunContext, *, ask: bool = False) -> Manifest:
    """Merge the manifests of this start and all earlier starts, write run.json, and return the result.

    Cells whose partners are not yet known are left out.

    Args:
        context: The run.
        ask: Whether to compute the networks' logits for fixed pictures and compare them with the logits of earlier
            starts.

    Raises:
        UserError: The folder belongs to another run, or the logits of a network differ from an earlier start.
    """
    objects, other = context.spec.python_objects(), context.other
    manifest = Manifest(
        spec=context.spec,
        identity=context.identity,
        cells={cell.id: cell.key for cell in context.cells if cell.is_planned},
        dataset=context.loaded_dataset,
        model=context.loaded_model,
        class_names=context.classifier.labels,
        answers=_answers_in(context) if ask else {},
        network=context.hashes[1] if ask else {},
        other=None if other is None else OtherIdentity(model=other.loaded_model, identity=other.identity),
        objects=(*context.in_memory, *(item for kind in ("explainers", "metrics") for item in objects.get(kind, ()))),
        maps={key: entry for key, entry in context.maps.items() if isinstance(entry, str)},
    ).after(read_earlier(context.out))
    manifest.write(context.out)
    return manifest


def _answers_in(context: RunContext) -> dict[Role, NetworkAnswers]:
    """Return the logits of the run's networks for fixed pictures, except for networks that cannot be compared."""
    samples = context.data.samples
    answers: dict[Role, NetworkAnswers | None] = {
        "model": answers_of(context.classifier, samples),
        "other model": None if context.other is None else answers_of(context.other.classifier, samples),
        "model of the targets": context.question.named_by,
    }
    return {role: answered for role, answered in answers.items() if answered is not None}


@contextmanager
def locked(out: Path, name: str) -> Iterator[None]:
    """Lock a folder against other runs until the context or the process ends.

    Args:
        out: The folder.
        name: The folder as the user wrote it, for messages.

    Raises:
        UserError: Another run is writing to the folder, or the folder is not writable.
    """
    check_run_folder(out)
    if (path := out / ".lock").is_symlink() or (path.exists() and not path.is_file()):
        raise UserError(f"{path} is a link or not a regular file, so {out} cannot be locked; delete it")
    lock = FileLock(path, timeout=0)
    try:
        out.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except Timeout as error:
        raise UserError(f"another run is writing to {name}; wait for it, or choose another --out") from error
    except OSError as error:
        raise UserError(f"cannot write to {name}: {error.strerror or error}; choose another --out") from error
    try:
        for stale in out.rglob(".*.tmp"):  # left by a run that was killed while writing
            stale.unlink(missing_ok=True)
        yield
    finally:
        lock.release()
