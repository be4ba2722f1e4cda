"""Lock the folder of a run against other writers, and write its run.json."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from saliency_bench.compute.cells import Cell, explainers_of
from saliency_bench.compute.fixed_answers import answers_of
from saliency_bench.compute.loaded import RunModel, identity_of
from saliency_bench.compute.loading.table import SplitTable
from saliency_bench.compute.precomputed import PrecomputedMaps
from saliency_bench.compute.preflight import check_run_folder
from saliency_bench.errors import UserError
from saliency_bench.read.manifest import Manifest, OtherIdentity, read_earlier
from saliency_bench.read.network_answers import NetworkAnswers, Role
from saliency_bench.read.parts import RunStore
from saliency_bench.spec import PythonObject, RunSpec
from saliency_bench.utils.hashing import hash_of


def write_manifest(
    store: RunStore, data: SplitTable, model: RunModel, cells: Sequence[Cell], *, ask: bool = False
) -> Manifest:
    """Merge the manifests of this call and all earlier calls of `run`, write run.json, and return the merged manifest.

    Cells whose partners are not yet known are left out.

    Args:
        store: Part files of the run.
        data: Samples of the run.
        model: Network of the run.
        cells: Cells of this call.
        ask: Whether to compute the networks' logits for fixed images and compare them with those of earlier calls.

    Raises:
        UserError: The folder belongs to another run, or the logits of a network differ from those in an earlier call.
    """
    objects, other, maps = data.spec.python_objects(), model.other, _maps_of(data.spec, cells)
    in_memory = [
        entry.model_copy(update={"digest": key}) for key, entry in maps.items() if isinstance(entry, PythonObject)
    ]
    manifest = Manifest(
        spec=data.spec,
        identity=store.identity,
        cells={cell.id: cell.key for cell in cells if cell.is_planned},
        dataset=data.loaded_from,
        model=model.loaded_from,
        class_names=model.classifier.labels,
        answers=_answers_in(data, model) if ask else {},
        network=model.hashes[1] if ask else {},
        other=None if other is None else OtherIdentity(model=other.loaded_from, identity=identity_of(data, other)),
        objects=(*in_memory, *(item for kind in ("explainers", "metrics") for item in objects.get(kind, ()))),
        maps={key: entry for key, entry in maps.items() if isinstance(entry, str)},
    ).after(read_earlier(store.out))
    manifest.write(store.out)
    return manifest


def _maps_of(spec: RunSpec, cells: Sequence[Cell]) -> dict[str, str | PythonObject]:
    """Return {explainer id: entry in `spec.maps`} of the cells with precomputed maps."""
    entries = {entry.partition("=")[0] if isinstance(entry, str) else entry.name: entry for entry in spec.maps}
    explainers = [item for item in explainers_of(cells) if isinstance(item.function, PrecomputedMaps)]
    return {hash_of(item.identity): entries[item.name] for item in explainers if item.name in entries}


def _answers_in(data: SplitTable, model: RunModel) -> dict[Role, NetworkAnswers]:
    """Return the logits of the run's networks for fixed images.

    Networks with irreproducible logits are left out.
    """
    answers: dict[Role, NetworkAnswers | None] = {
        "model": answers_of(model.classifier, data.samples),
        "other model": None if model.other is None else answers_of(model.other.classifier, data.samples),
        "model of the targets": model.question.named_by,
    }
    return {role: answered for role, answered in answers.items() if answered is not None}


@contextmanager
def locked(out: Path, name: str) -> Iterator[None]:
    """Lock a folder against other runs until the context or the process ends.

    Args:
        out: The folder.
        name: Name of the folder as written by the user, for messages.

    Raises:
        UserError: Another run is writing to the folder, or the folder is not writable.
    """
    check_run_folder(out)
    if (path := out / ".lock").is_symlink() or (path.exists() and not path.is_file()):
        raise UserError(f"{out} cannot be locked, because {path} is a link or not a regular file; delete {path}")
    lock = FileLock(path, timeout=0)
    try:
        out.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except Timeout as error:
        raise UserError(
            f"another run is writing to {name}; wait until it has finished, or choose a different --out"
        ) from error
    except OSError as error:
        raise UserError(f"cannot write to {name}: {error.strerror or error}; choose a different --out") from error
    try:
        for stale in out.rglob(".*.tmp"):  # left by a run that was killed while writing
            stale.unlink(missing_ok=True)
        yield
    finally:
        lock.release()
