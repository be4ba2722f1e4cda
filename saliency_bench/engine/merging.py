"""Part files become records.parquet and predictions.parquet: the same bytes whatever way they were computed."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

import saliency_bench
from saliency_bench import options, registry
from saliency_bench.engine.context import RunContext
from saliency_bench.engine.predictions import (
    predicted_chunks,
    prediction_parts,
    prediction_schema,
    read_predictions,
    wanted,
)
from saliency_bench.engine.store import parts_of
from saliency_bench.errors import UserError
from saliency_bench.results import records
from saliency_bench.results.cell import CellKey
from saliency_bench.results.manifest import read_manifest
from saliency_bench.results.parts import POSITION, Part, in_order, stored_samples
from saliency_bench.results.summary import RunFacts
from saliency_bench.utils.files import read_json, write_json
from saliency_bench.utils.hashing import hash_of, sha256_of
from saliency_bench.utils.messages import complain

FORMAT = 1  # of merged.json; another one merges anew
MERGED = "merged.json"  # what these files were made of
WRITTEN = "written.json"  # what the files of DERIVED were made of
DERIVED = ("summary.json", "timings.json", "examples.npz", "report.html")
PACKAGE = Path(saliency_bench.__file__).parent
PREDICTIONS_AT_ONCE = 2048  # rows


def merge(context: RunContext) -> int:
    """Part files to records.parquet and predictions.parquet, cut to the run's samples (a chunk is computed whole).

    records.parquet is sorted by cell id, the sample's place in the run, and part, the score first. One cell after the
    other is read: memory grows with the samples, not with the cells. Where nothing has changed, nothing is written.

    Returns: how many samples are explained.
    Cells of an earlier start that cover fewer samples than this one are named and not shown with the others.
    Raises: UserError where a part was damaged or lost since the run has computed it.
    """
    plan = read_manifest(context.out).cells
    folders = {key.explainer_id: parts_of(context, key.explainer_id) for key in plan.values()}
    parts = {key: folder.parts() for key, folder in folders.items()}
    predicted = [predicted_chunks(prediction_parts(one).parts()) for one in context.of_both]
    if not all(known.keys() >= set(context.chunks) for known in predicted):
        raise _lost(context, "predictions")
    chosen = wanted(context, predicted[0])
    complete = complete_cells(context, plan, parts, chosen)
    shown = chosen.ravel() & (np.arange(chosen.size) < context.samples)
    of_predictions = {f" {number}": [*known.values()] for number, known in enumerate(predicted)}
    made_of = _made_of(context, plan, of_predictions | parts, complete, shown)
    files = ["records.parquet", *(f"{one.folder}.parquet" for one in context.of_both)]
    if not _is_merged(context.out, made_of, files):
        if not all(folder.is_whole() for folder in (*map(prediction_parts, context.of_both), *folders.values())):
            raise _lost(context, "its files")
        for one, known in zip(context.of_both, predicted, strict=True):
            _write_predictions(one, known)
        _write_records(context, plan, parts, predicted[0], complete, shown)
        hashes = {name: sha256_of(context.out / name) for name in files}
        write_json(context.out / MERGED, {"format": FORMAT, "of": made_of, "files": hashes})
    return int(shown.sum())


def _write_predictions(context: RunContext, predictions: dict[int, Part]) -> None:
    schema = prediction_schema(context)
    tables = _first((table for _, table in read_predictions(context, predictions, schema.names)), context.samples)
    records.concat(tables, context.out / f"{context.folder}.parquet", schema, PREDICTIONS_AT_ONCE)


def _write_records(
    context: RunContext, plan: dict[str, CellKey], parts: dict[str, list[Part]], predictions: dict[int, Part],
    complete: list[str], shown: np.ndarray,
) -> None:  # fmt: skip
    samples = _samples(context, predictions)
    cells = (_cell(context, plan[cell], parts[plan[cell].explainer_id], shown, samples) for cell in sorted(complete))
    records.concat(cells, context.out / "records.parquet", records.SCHEMA)


def _first(tables: Iterator[pa.Table], rows: int) -> Iterator[pa.Table]:
    for table in tables:
        yield table.slice(0, rows)
        rows -= min(rows, len(table))


def _cell(
    context: RunContext, key: CellKey, parts: list[Part], shown: np.ndarray, samples: dict[str, pa.Array]
) -> pa.Table:
    """The records of a cell. samples: as `_samples` gives them."""
    table = in_order([part.read(key.cell_id) for part in parts if key.cell_id in part.groups])
    positions = table[POSITION].to_numpy()
    # An earlier start may have had a wider limit.
    table = table.filter((positions < len(shown)) & shown[np.minimum(positions, len(shown) - 1)])
    if table["part"].null_count != shown.sum():
        raise _lost(context, f"{key.explainer_text} by {key.metric_text}")
    positions = table[POSITION]
    of_cell = {
        "cell_id": key.cell_id,
        **context.recorded,
        "explainer": key.explainer,
        "explainer_options": options.text(tuple(key.explainer_options.items())),
        "metric": key.metric,
        "metric_options": options.text(tuple(key.metric_options.items())),
    }
    columns = {name: pa.repeat(pa.scalar(value, pa.string()), len(table)) for name, value in of_cell.items()}
    columns |= {name: values.take(positions.combine_chunks()) for name, values in samples.items()}
    columns |= {name: table[name] for name in table.column_names}
    return pa.table([columns[name] for name in records.SCHEMA.names], schema=records.SCHEMA)


def _samples(context: RunContext, predictions: dict[int, Part]) -> dict[str, pa.Array]:
    """Columns of records that are the same for all cells: a value per sample."""
    columns = ["image_id", "group", "label", "prediction"]
    tables = (table for _, table in read_predictions(context, predictions, columns))
    found = {name: values.combine_chunks() for name, values in zip(columns, pa.concat_tables(tables), strict=True)}
    names, classes = context.names, context.classifier.labels
    found["label"] = pa.nulls(len(found["label"])) if names is None else pa.array(names).take(found["label"])
    found["prediction"] = pa.array(classes).take(found["prediction"]) if classes else found["prediction"]
    return {name: values.cast(pa.string()) for name, values in found.items()}


def complete_cells(
    context: RunContext, plan: dict[str, CellKey], parts: dict[str, list[Part]], chosen: np.ndarray
) -> list[str]:
    """The cells that have all samples; of others a line on standard error says how to complete them.

    chosen: Bool (chunks, samples of a chunk), those that are explained. Raises: UserError for one of this start.
    """
    complete: set[str] = set()
    own = {cell.id for cell in context.cells}
    for explainer_id, files in parts.items():
        cells = [key for key in plan.values() if key.explainer_id == explainer_id]
        found = stored_samples(files, [key.cell_id for key in cells], *chosen.shape)
        for key in cells:
            name = f"{key.explainer_text} by {key.metric_text}"
            if (found[key.cell_id] | ~chosen).all():
                complete.add(key.cell_id)
            elif key.cell_id in own:
                raise _lost(context, name)
            else:
                complain(f"{name} was computed for fewer samples before and is not shown; name it again to complete it")
    return [cell_id for cell_id in plan if cell_id in complete]


def _lost(context: RunContext, what: str) -> UserError:
    return UserError(f"a part of {what} in {context.out} was damaged or lost during the run; start it again")


def _made_of(
    context: RunContext, plan: dict[str, CellKey], parts: dict[str, list[Part]], complete: list[str], shown: np.ndarray
) -> str:
    """A hash of all that the two files depend on; the names of parts hold the hashes of their contents."""
    names = {key: sorted(part.path.name for part in own) for key, own in parts.items()}
    keys = [plan[cell].model_dump(mode="json") for cell in complete]
    called = context.recorded, context.names, context.classifier.labels
    return hash_of(FORMAT, str(records.SCHEMA), names, keys, called, np.packbits(shown).tobytes().hex())


def _is_merged(out: Path, made_of: str, files: Sequence[str]) -> bool:
    """Whether the files are there, as they were made of the same."""
    try:
        known = read_json(out / MERGED)
        return known == {"format": FORMAT, "of": made_of, "files": {name: sha256_of(out / name) for name in files}}
    except (UserError, OSError):
        return False


def derived_from(out: Path, facts: RunFacts) -> str:
    """A hash of all that summary, examples and page follow from: merged files, facts, and the code that makes them."""
    own = (path for path in PACKAGE.rglob("*") if path.suffix in {".py", ".css", ".js", ".j2"})
    metrics = (path.with_name("score.py") for path in registry.files("metrics").values())  # what a page says of them
    code = hash_of([sha256_of(path) for path in sorted({*own, *metrics, *registry.files("explainers").values()})])
    return hash_of(FORMAT, read_json(out / MERGED), vars(facts) | {"folder": str(facts.folder)}, code)


def is_written(out: Path, derived: str) -> bool:
    """Whether a finished start has written all of `DERIVED` from the same, and nobody has changed them since."""
    try:
        return read_json(out / WRITTEN) == _written(out, derived)
    except (UserError, OSError):
        return False


def note_written(out: Path, derived: str) -> None:
    write_json(out / WRITTEN, _written(out, derived))


def _written(out: Path, derived: str) -> dict:
    there = [name for name in DERIVED if (out / name).is_file()]
    return {"format": FORMAT, "of": derived, "files": {name: sha256_of(out / name) for name in there}}
