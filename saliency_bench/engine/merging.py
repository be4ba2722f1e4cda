"""Part files become records.parquet and predictions.parquet: the same bytes whatever way they were computed."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, groupby
from pathlib import Path

import numpy as np
import pyarrow as pa

import saliency_bench
from saliency_bench import options, registry
from saliency_bench.engine.context import RunContext
from saliency_bench.engine.predictions import (
    StoredPredictions,
    prediction_parts,
    prediction_schema,
    predictions_of,
    read_predictions,
    wanted,
)
from saliency_bench.engine.store import score_parts
from saliency_bench.errors import UserError
from saliency_bench.results import WRITTEN, records
from saliency_bench.results.cell import CellKey
from saliency_bench.results.manifest import read_manifest
from saliency_bench.results.parts import POSITION, Part, in_order, stored_samples
from saliency_bench.results.summary import RunFacts
from saliency_bench.utils.files import read_json, write_json
from saliency_bench.utils.hashing import hash_of, sha256_of
from saliency_bench.utils.messages import complain

FORMAT = 1  # of merged.json; another one merges anew
MERGED = "merged.json"  # what these files were made of
DERIVED = ("summary.json", "timings.json", "examples.npz", "report.html")
PACKAGE = Path(saliency_bench.__file__).parent
PREDICTIONS_AT_ONCE = 2048  # rows
RECORDS_AT_ONCE = 2**20  # rows in memory, unless a cell has more


def merge(context: RunContext) -> int:
    """Make records.parquet and predictions.parquet of the part files, cut to the run's samples.

    records.parquet is sorted by the ids of explainer and cell, the sample's place in the run, and part, the score
    first. A few cells are in memory at once: it grows with the samples, not with the cells. Where nothing has changed,
    nothing is written. Cells of an earlier start that cover fewer samples than this one are named and not shown.

    Returns:
        The number of samples that are explained.

    Raises:
        UserError: A part was damaged or lost since the run computed it.
    """
    keys = read_manifest(context.out).cells
    parts = score_parts(context).parts()
    predicted = [predictions_of(run, prediction_parts(run).parts()) for run in context.of_both]
    if not all(number in predictions for predictions in predicted for number in context.chunks):
        raise _lost(context, "predictions")
    chosen = wanted(context, predicted[0])
    complete = complete_cells(context, keys, parts, chosen)
    shown = chosen.ravel() & (np.arange(chosen.size) < context.data.count)
    files = [part.path for part in chain(parts, *(predictions.parts for predictions in predicted))]
    made_of = _made_of(context, keys, [f"{path.parent.name}/{path.name}" for path in files], complete, shown)
    tables = ["records.parquet", *(f"{run.folder}.parquet" for run in context.of_both)]
    if not _is_merged(context.out, made_of, tables):
        if not all(folder.is_whole() for folder in (score_parts(context), *map(prediction_parts, context.of_both))):
            raise _lost(context, "its files")
        for run, predictions in zip(context.of_both, predicted, strict=True):
            _write_predictions(run, predictions)
        samples = _samples(context, predicted[0])
        cells = (
            _cell(context, key, rows, shown, samples)
            for key, rows in _rows_of_cells(parts, [keys[cell] for cell in complete])
        )
        records.concat(cells, context.out / "records.parquet", records.SCHEMA)
        hashes = {name: sha256_of(context.out / name) for name in tables}
        write_json(context.out / MERGED, {"format": FORMAT, "of": made_of, "files": hashes})
    return int(shown.sum())


def _write_predictions(context: RunContext, predictions: StoredPredictions) -> None:
    """Write predictions.parquet."""
    schema = prediction_schema(context)
    tables = _first((table for _, table in read_predictions(context, predictions, schema.names)), context.data.count)
    records.concat(tables, context.out / f"{context.folder}.parquet", schema, PREDICTIONS_AT_ONCE)


def _rows_of_cells(parts: Sequence[Part], keys: Iterable[CellKey]) -> Iterator[tuple[CellKey, pa.Table]]:
    """Yield (cell, its rows in all parts) by the ids of explainer and cell.

    An explainer's rows are read for as many of its cells at once as fit into `RECORDS_AT_ONCE`.
    """
    by_ids = sorted(keys, key=lambda key: (key.explainer_id, key.cell_id))
    for explainer_id, of_explainer in groupby(by_ids, key=lambda key: key.explainer_id):
        cells = list(of_explainer)
        counts = Counter[str]()
        for part in parts:
            counts.update(part.groups.get(explainer_id, {}))
        # A part is a row group per explainer, so that one reading serves several cells; memory decides how many.
        at_once = max(1, RECORDS_AT_ONCE // max(counts[key.cell_id] for key in cells))
        for first in range(0, len(cells), at_once):
            tables: dict[str, list[pa.Table]] = {key.cell_id: [] for key in cells[first : first + at_once]}
            for part in parts:
                for cell_id, rows in part.read(explainer_id).items():
                    if cell_id in tables:
                        # A copy, or else the rows of all other cells stay in memory as well.
                        tables[cell_id].append(pa.concat_tables([rows]).combine_chunks())
            for key in cells[first : first + at_once]:
                yield key, in_order(tables.pop(key.cell_id))


def _first(tables: Iterator[pa.Table], rows: int) -> Iterator[pa.Table]:
    """Yield tables until there are so many rows."""
    for table in tables:
        yield table.slice(0, rows)
        rows -= min(rows, len(table))


def _cell(
    context: RunContext, key: CellKey, table: pa.Table, shown: np.ndarray, samples: dict[str, pa.Array]
) -> pa.Table:
    """Return the records of a cell.

    Args:
        context: what the run works on.
        key: the cell.
        table: its rows in the part files.
        shown: Bool, which samples of the run have records.
        samples: as `_samples` returns them.
    """
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


def _samples(context: RunContext, predictions: StoredPredictions) -> dict[str, pa.Array]:
    """Return the columns of records that are the same for all cells: a value per sample."""
    columns = ["image_id", "group", "label", "prediction"]
    tables = (table for _, table in read_predictions(context, predictions, columns))
    values = {name: column.combine_chunks() for name, column in zip(columns, pa.concat_tables(tables), strict=True)}
    names, classes = context.question.names, context.classifier.labels
    values["label"] = pa.nulls(len(values["label"])) if names is None else pa.array(names).take(values["label"])
    values["prediction"] = pa.array(classes).take(values["prediction"]) if classes else values["prediction"]
    return {name: column.cast(pa.string()) for name, column in values.items()}


def complete_cells(
    context: RunContext, keys: dict[str, CellKey], parts: Sequence[Part], chosen: np.ndarray
) -> list[str]:
    """Return the cells that have all samples; for others a line on standard error says how to complete them.

    Args:
        context: what the run works on.
        keys: the cells of all starts.
        parts: the part files of the scores.
        chosen: Bool (chunks, samples of a chunk), those that are explained.

    Raises:
        UserError: A cell of this start lacks samples.
    """
    complete: list[str] = []
    of_this_start = {cell.id for cell in context.cells}
    stored = stored_samples(parts, keys, *chosen.shape)
    for cell_id, key in keys.items():
        name = f"{key.explainer_text} by {key.metric_text}"
        if (stored[cell_id] | ~chosen).all():
            complete.append(cell_id)
        elif cell_id in of_this_start:
            raise _lost(context, name)
        else:
            complain(f"{name} was computed for fewer samples before and is not shown; name it again to complete it")
    return complete


def _lost(context: RunContext, content: str) -> UserError:
    """Return the error for a part file that is gone."""
    return UserError(f"a part of {content} in {context.out} was damaged or lost during the run; start it again")


def _made_of(
    context: RunContext, keys: dict[str, CellKey], files: list[str], complete: list[str], shown: np.ndarray
) -> str:
    """Return a hash of all that the tables depend on; the names of part files hold the hashes of their contents."""
    cells = [keys[cell].model_dump(mode="json") for cell in complete]
    names = context.recorded, context.question.names, context.classifier.labels
    return hash_of(FORMAT, str(records.SCHEMA), files, cells, names, np.packbits(shown).tobytes().hex())


def _is_merged(out: Path, made_of: str, files: Sequence[str]) -> bool:
    """Return whether the files are there, as they were made of the same."""
    try:
        noted = read_json(out / MERGED)
        return noted == {"format": FORMAT, "of": made_of, "files": {name: sha256_of(out / name) for name in files}}
    except (UserError, OSError):
        return False


def derived_from(out: Path, facts: RunFacts) -> str:
    """Return a hash of all that summary, examples and page follow from: merged files, facts, and the code."""
    core = (path for path in PACKAGE.rglob("*") if path.suffix in {".py", ".css", ".js", ".j2"})
    metrics = (path.with_name("score.py") for path in registry.files("metrics").values())  # what a page says of them
    code = hash_of([sha256_of(path) for path in sorted({*core, *metrics, *registry.files("explainers").values()})])
    return hash_of(FORMAT, read_json(out / MERGED), vars(facts) | {"folder": str(facts.folder)}, code)


def is_written(out: Path, derived: str) -> bool:
    """Return whether a finished start has written all of `DERIVED` from the same, and nobody has changed them."""
    try:
        return read_json(out / WRITTEN) == _written(out, derived)
    except (UserError, OSError):
        return False


def note_written(out: Path, derived: str) -> None:
    """Note that all of `DERIVED` is written, and what it was made of."""
    write_json(out / WRITTEN, _written(out, derived))


def _written(out: Path, derived: str) -> dict:
    """Return the content of the note: the hashes of the files that are there."""
    names = [name for name in DERIVED if (out / name).is_file()]
    return {"format": FORMAT, "of": derived, "files": {name: sha256_of(out / name) for name in names}}
