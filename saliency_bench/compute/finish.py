"""Finish a run: write the tables, the summary, the examples and the report page from the part files.

OUT/written.json stores the hashes of the part files and of the written files. A later call of `run` writes nothing if
all hashes still match.
"""

import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import saliency_bench
from saliency_bench import registry
from saliency_bench.compute.cells import Cell
from saliency_bench.compute.classifiers.passes import PIXELS_PER_PASS
from saliency_bench.compute.examples import write_examples
from saliency_bench.compute.loaded import RunModel
from saliency_bench.compute.loading.table import SplitTable
from saliency_bench.compute.merging import Parts, merge
from saliency_bench.errors import UserError
from saliency_bench.read import WRITTEN
from saliency_bench.read.cell import read_cells
from saliency_bench.read.parts import RunStore
from saliency_bench.read.statistics.reliability import FILE as RELIABILITY
from saliency_bench.read.summary import summarise
from saliency_bench.registry import owner_of
from saliency_bench.utils.devices import peak_memory
from saliency_bench.utils.files import read_json, write_json
from saliency_bench.utils.hashing import hash_of, sha256_of
from saliency_bench.utils.provenance import provenance

FORMAT = 2  # version of written.json; if it changes, every run writes its files again
TABLES = ("records.parquet", "predictions.parquet", "other_predictions.parquet", RELIABILITY)
FILES = (*TABLES, "summary.json", "timings.json", "examples.npz", "report.html")
PACKAGE = Path(saliency_bench.__file__).parent


def finish(
    store: RunStore, data: SplitTable, model: RunModel, cells: Sequence[Cell], misfits: Mapping[str, str],
    timings: dict[str, Any],
) -> dict:  # fmt: skip
    """Write all files that are derived from the part files, unless they exist, and return the summary.

    Args:
        store: Part files of the run.
        data: Samples of the run.
        model: Network of the run.
        cells: Cells of this call of `run`.
        misfits: {explainer that does not support the network: reason}.
        timings: Entries of timings.json, including the `seconds` since the start.

    Raises:
        UserError: No sample matches the selection, or a part file was damaged or lost after the run computed it.
    """
    out, parts = store.out, Parts.read(store, data, model, cells)
    if not parts.shown.any():
        raise UserError(f"no sample of the run matches --only {' '.join(data.spec.only or ())}; relax the conditions")
    facts = run_facts(data, model, cells, misfits, int(parts.shown.sum()))
    origin = made_of(parts, facts)
    if is_written(out, origin):
        return read_json(out / "summary.json")
    from saliency_bench.read.report.report_page import report  # slow to import, because it imports the plotting library

    merge(store, data, model, cells, parts)
    summary = summarise(out, facts)
    memory, seconds = peak_memory(model.classifier.device), timings["seconds"]
    times = {"started": time.time() - seconds, "seconds": seconds, "peak_memory": memory}
    write_json(out / "timings.json", times | timings)
    prepare, rows, mask_values = model.classifier.prepare, data.samples.rows, data.spec.mask_values
    results = read_cells(summary["cells"])
    write_examples(store, results, lambda index: prepare([rows[index]], mask_values=mask_values))
    report([out])
    note_written(out, origin)
    return summary


def made_of(parts: Parts, facts: dict[str, Any]) -> str:
    """Return a hash of everything that the derived files depend on."""
    return hash_of(FORMAT, parts.identity, facts, _code())


def is_written(out: Path, origin: str) -> bool:
    """Return whether an earlier call of `run` wrote all files from these part files and no file has changed since."""
    try:
        return read_json(out / WRITTEN) == _note(out, origin)
    except (UserError, OSError):
        return False


def note_written(out: Path, origin: str) -> None:
    """Record in written.json that all files have been written, with the origin and the hashes of the files."""
    write_json(out / WRITTEN, _note(out, origin))


def _note(out: Path, origin: str) -> dict:
    """Return the content of written.json: the origin, and the hashes of the existing files."""
    names = [name for name in FILES if (out / name).is_file()]
    return {"format": FORMAT, "of": origin, "files": {name: sha256_of(out / name) for name in names}}


def _code() -> str:
    """Return a hash of this package's code and of the plugins that contribute text to the report page."""
    metrics = (registry.score_file("metrics", name) for name in registry.names("metrics"))
    plugins = sorted({*metrics, *registry.files("explainers").values()})
    return hash_of([_core_code(), *(sha256_of(path) for path in plugins)])


@cache
def _core_code() -> str:
    files = sorted(path for path in PACKAGE.rglob("*") if path.suffix in {".py", ".css", ".js", ".j2"})
    return hash_of([sha256_of(path) for path in files])


def run_facts(
    data: SplitTable, model: RunModel, cells: Sequence[Cell], misfits: Mapping[str, str], explained: int
) -> dict[str, Any]:
    """Return the entries of summary.json that do not depend on records. `explained` counts the explained samples."""
    spec, question, classifier, other = data.spec, model.question, model.classifier, model.other
    groups = question.groups
    return {
        "dataset": {
            **data.loaded_from.model_dump(),
            "title": data.source.title,
            "split": spec.split,
            "fingerprint": data.fingerprint,
            "samples": len(data.rows),
            "used": data.count,
            "classes": len(question.names or ()),
        },
        "model": _model(model),
        "other_model": None if other is None else _model(other) | {"label_column": other.label_column},
        "only": None if spec.only is None else {"conditions": list(spec.only), "samples": explained},
        "target": question.rule.name,
        "groups": None if groups is None else {"name": groups.name, "identity": groups.identity},
        "precision": classifier.arithmetic,
        **({"misfits": dict(misfits)} if misfits else {}),
        "seed": spec.seed,
        "batch_size": spec.batch_size,
        "provenance": provenance(classifier.device, _plugins(cells))
        | {"pixels_per_pass": PIXELS_PER_PASS[classifier.device.type]},
    }


def _model(model: RunModel) -> dict[str, Any]:
    """Return the entry of a classifier in summary.json, without its accuracy."""
    classifier, question = model.classifier, model.question
    return {
        **model.loaded_from.model_dump(),
        "digest": model.hashes[0],
        "geometry": str(classifier.geometry),
        "classes": question.classes,
        "activation": classifier.activation,
        "activation_assumed": classifier.assumed,
        "no_accuracy": question.unlabelled or None,
        **({"classes_by_position": True} if question.by_position else {}),
    }


def _plugins(cells: Sequence[Cell]) -> list[str]:
    """Return the names of the other packages that provide explainers or metrics for these cells."""
    owners = {owner_of(item.version) for cell in cells for item in (cell.explainer, cell.metric)}
    return sorted({owner.partition(" ")[0] for owner in owners if owner})
