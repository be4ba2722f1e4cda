"""Merge part files into records.parquet and predictions.parquet.

The content of these files does not depend on the batch size.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import chain, groupby
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from saliency_bench import options
from saliency_bench.compute.cells import Cell
from saliency_bench.compute.loaded import RunModel
from saliency_bench.compute.loading.table import SplitTable
from saliency_bench.compute.plan import chosen_samples
from saliency_bench.compute.predictions import StoredPredictions
from saliency_bench.errors import UserError
from saliency_bench.read import records
from saliency_bench.read.cell import CellKey
from saliency_bench.read.manifest import read_manifest
from saliency_bench.read.parts import POSITION, Part, RunStore, in_order, stored_samples
from saliency_bench.read.public_names import recorded_name
from saliency_bench.read.statistics.reliability import FILE as RELIABILITY
from saliency_bench.utils.hashing import hash_of
from saliency_bench.utils.messages import complain

PREDICTIONS_AT_ONCE = 2048  # rows
RECORDS_AT_ONCE = 2**20  # rows in memory; a single cell may have more rows


@dataclass(frozen=True)
class Parts:
    """The part files and cells from which the tables of a run are written.

    Attributes:
        scores: Part files of the scores.
        predictions: Predictions of the classifier, and of the other model if there is one.
        cells: Cells that cover all samples.
        shown: Whether each sample has records, Bool (samples of all batches,). Samples that could not be read also have
            records, which contain a reason instead of a score.
    """

    scores: list[Part]
    predictions: list[StoredPredictions]
    cells: list[CellKey]
    shown: np.ndarray

    @classmethod
    def read(cls, store: RunStore, data: SplitTable, model: RunModel, cells: Sequence[Cell]) -> "Parts":
        """List the part files of a run and the cells that they complete. Checksums are not verified.

        Cells from an earlier call of `run` that cover fewer samples than this call are left out, and a message is
        printed.

        Raises:
            UserError: A part file was lost after the run computed it.
        """
        predictions = [StoredPredictions.read(store, data, network) for network in model.both]
        if not all(known.is_stored.all() for known in predictions):
            raise _lost(store.out, "predictions")
        scores = store.scores.parts()
        chosen = chosen_samples(model.question.selection, predictions[0])
        complete = _complete_cells(store.out, cells, scores, chosen & predictions[0].is_readable)
        # Batches are always complete, so samples of the last batch beyond the limit are stored but not shown.
        return cls(scores, predictions, complete, chosen & (np.arange(len(chosen)) < data.count))

    @property
    def identity(self) -> str:
        """Return a hash of everything that the tables depend on. The names of part files include content hashes."""
        files = [part.path for part in chain(self.scores, *(stored.parts for stored in self.predictions))]
        names = [f"{path.parent.name}/{path.name}" for path in files]
        cells = [key.model_dump(mode="json") for key in self.cells]
        return hash_of(str(records.SCHEMA), names, cells, np.packbits(self.shown).tobytes().hex())


def merge(store: RunStore, data: SplitTable, model: RunModel, cells: Sequence[Cell], parts: Parts) -> None:
    """Merge the part files into records.parquet and predictions.parquet, limited to the run's samples.

    Rows of records.parquet are sorted by explainer id, cell id, position of the sample in the run, and part. The score
    comes before its parts. Only a few cells are in memory at once, so memory use grows with the number of samples but
    not with the number of cells.

    Raises:
        UserError: A part file was damaged after the run computed it.
    """
    out, schema = store.out, data.schema
    folders = [store.scores, *(store.predictions(network.folder, schema) for network in model.both)]
    if not all(folder.is_whole() for folder in folders):
        raise _lost(out, "its files")
    for network, predictions in zip(model.both, parts.predictions, strict=True):
        tables = _first((table for _, table in predictions.tables(schema.names)), data.count)
        records.concat(tables, out / f"{network.folder}.parquet", schema, PREDICTIONS_AT_ONCE)
    samples = _samples(parts.predictions[0], model.question.names, model.class_names)
    recorded = {
        "dataset": recorded_name(data.source.name, store.identity.fingerprint),
        "split": data.spec.split,
        "model": recorded_name(model.name, store.identity.classifier),
    }
    unread = _unread(parts)
    names_of_parts = {cell.id: cell.metric.parts(model.classifier) for cell in cells}
    of_maps: dict[str, pa.Table] = {}

    def tables_of_cells() -> Iterator[pa.Table]:
        """Yield the records of each cell, and collect the values stored for its maps."""
        for key, rows in _rows_of_cells(parts.scores, parts.cells):
            shown = _show(out, key, rows, parts)
            _keep_of_maps(of_maps, key, shown, samples["image_id"])
            yield _cell(recorded, key, _with_unread(shown, unread, names_of_parts.get(key.cell_id)), samples)

    records.concat(tables_of_cells(), out / "records.parquet", records.SCHEMA)
    if of_maps:
        tables = (of_maps[explainer_id] for explainer_id in sorted(of_maps))
        records.concat(tables, out / RELIABILITY, records.RELIABILITY)
    else:
        (out / RELIABILITY).unlink(missing_ok=True)


def _keep_of_maps(of_maps: dict[str, pa.Table], key: CellKey, rows: pa.Table, ids: pa.Array) -> None:
    """Keep the map values in a cell's rows if they are more complete than those already kept for the explainer.

    Cells that were computed by an earlier version of the package lack newer columns.

    Args:
        of_maps: {explainer id: rows of `records.RELIABILITY`}. It is changed in place.
        key: The cell.
        rows: Rows of the cell's samples.
        ids: Ids of the run's images.
    """
    rows = rows.filter(reduce(pc.or_, (pc.is_valid(rows[column.name]) for column in records.OF_MAP)))
    before = of_maps.get(key.explainer_id)
    if len(rows) == 0 or (before is not None and _values(before) >= _values(rows)):
        return
    of_explainer = {
        "explainer_id": key.explainer_id,
        "explainer": key.explainer,
        "explainer_options": options.text(tuple(key.explainer_options.items())),
    }
    columns = {name: pa.repeat(pa.scalar(value, pa.string()), len(rows)) for name, value in of_explainer.items()}
    columns |= {"image_id": ids.take(rows[POSITION].combine_chunks())}
    columns |= {column.name: rows[column.name] for column in records.OF_MAP}
    of_maps[key.explainer_id] = pa.table(columns, schema=records.RELIABILITY)


def _values(rows: pa.Table) -> int:
    """Return the number of map values that are not null."""
    return sum(len(rows) - rows[column.name].null_count for column in records.OF_MAP)


def _rows_of_cells(parts: Sequence[Part], keys: Iterable[CellKey]) -> Iterator[tuple[CellKey, pa.Table]]:
    """Yield (cell, its rows in all part files), sorted by explainer id and cell id.

    Each pass over an explainer's rows collects as many cells as fit in `RECORDS_AT_ONCE`.
    """
    by_ids = sorted(keys, key=lambda key: (key.explainer_id, key.cell_id))
    for explainer_id, of_explainer in groupby(by_ids, key=lambda key: key.explainer_id):
        cells = list(of_explainer)
        counts = Counter[str]()
        for part in parts:
            counts.update(part.groups.get(explainer_id, {}))
        # A part file has one row group per explainer, so one read collects several cells, as many as fit in memory.
        at_once = max(1, RECORDS_AT_ONCE // max(1, *(counts[key.cell_id] for key in cells)))
        for first in range(0, len(cells), at_once):
            tables: dict[str, list[pa.Table]] = {key.cell_id: [] for key in cells[first : first + at_once]}
            for part in parts:
                for cell_id, rows in part.read(explainer_id).items():
                    if cell_id in tables:
                        # Copy, because a slice would keep the rows of all other cells in memory.
                        tables[cell_id].append(records.stored(pa.concat_tables([rows]).combine_chunks()))
            for key in cells[first : first + at_once]:
                # There are no rows if no sample of the run could be read.
                yield key, in_order(tables.pop(key.cell_id) or [records.STORED.empty_table()])


def _first(tables: Iterator[pa.Table], rows: int) -> Iterator[pa.Table]:
    """Yield tables until they have this many rows in total, truncating the last table."""
    for table in tables:
        yield table.slice(0, rows)
        rows -= min(rows, len(table))


def _show(out: Path, key: CellKey, table: pa.Table, parts: Parts) -> pa.Table:
    """Complete a cell's rows from the part files, so that every sample that has records has rows.

    Raises:
        UserError: A readable sample has no rows.
    """
    shown = parts.shown & parts.predictions[0].is_readable
    positions = table[POSITION].to_numpy()
    # An earlier call of `run` may have had a higher limit.
    table = table.filter((positions < len(shown)) & shown[np.minimum(positions, len(shown) - 1)])
    if table["part"].null_count != shown.sum():
        raise _lost(out, f"{key.explainer_text} by {key.metric_text}")
    return table


def _unread(parts: Parts) -> dict[int, str]:
    """Return {position: reason} for the samples that have records but could not be read or classified."""
    predictions = parts.predictions[0]
    without = np.flatnonzero(parts.shown & ~predictions.is_readable).tolist()
    return {
        position: predictions.table(range(position, position + 1), ["left_out"])["left_out"][0].as_py()
        for position in without
    }


def _with_unread(table: pa.Table, unread: dict[int, str], names: Sequence[str] | None) -> pa.Table:
    """Add rows for unreadable samples to a cell. They contain the reason instead of scores.

    Args:
        table: Rows of the readable samples.
        unread: {position: the reason}.
        names: Names of the parts of the cell's scores. None reads the names from rows that an earlier call stored.
    """
    if not unread:
        return table
    if names is None:
        names = table.filter(pc.equal(table[POSITION], pc.min(table[POSITION])))["part"].drop_null().to_pylist()
    rows = [
        {POSITION: position, "part": part, "reason": reason}
        for position, reason in unread.items()
        for part in (None, *names)
    ]
    table = pa.concat_tables([table, pa.Table.from_pylist(rows, schema=table.schema)]).combine_chunks()
    return table.take(np.argsort(table[POSITION].to_numpy(), kind="stable"))


def _cell(recorded: dict[str, str], key: CellKey, table: pa.Table, samples: dict[str, pa.Array]) -> pa.Table:
    """Return the records of a cell, given the rows from the part files and the result of `_samples`."""
    positions = table[POSITION]
    of_cell = {
        "cell_id": key.cell_id,
        **recorded,
        "explainer": key.explainer,
        "explainer_options": options.text(tuple(key.explainer_options.items())),
        "metric": key.metric,
        "metric_options": options.text(tuple(key.metric_options.items())),
    }
    columns = {name: pa.repeat(pa.scalar(value, pa.string()), len(table)) for name, value in of_cell.items()}
    columns |= {name: values.take(positions.combine_chunks()) for name, values in samples.items()}
    columns |= {name: table[name] for name in table.column_names}
    return pa.table([columns[name] for name in records.SCHEMA.names], schema=records.SCHEMA)


def _samples(predictions: StoredPredictions, names: list[str] | None, classes: list[str] | None) -> dict[str, pa.Array]:
    """Return the columns of records that all cells share, with one value per sample.

    Args:
        predictions: Predictions of the classifier.
        names: Class names of the dataset.
        classes: Class names of the network.
    """
    columns = ["image_id", "group", "label", "prediction"]
    tables = (table for _, table in predictions.tables(columns))
    values = {name: column.combine_chunks() for name, column in zip(columns, pa.concat_tables(tables), strict=True)}
    values["label"] = pa.nulls(len(values["label"])) if names is None else pa.array(names).take(values["label"])
    values["prediction"] = pa.array(classes).take(values["prediction"]) if classes else values["prediction"]
    return {name: column.cast(pa.string()) for name, column in values.items()}


def _complete_cells(out: Path, cells: Sequence[Cell], parts: Sequence[Part], chosen: np.ndarray) -> list[CellKey]:
    """Return the cells that cover all samples. For each incomplete cell, print how to complete it.

    Args:
        out: Folder of the run.
        cells: Cells of this call of `run`.
        parts: Part files of the scores.
        chosen: Bool (samples,), whether each sample is explained.

    Raises:
        UserError: A cell of this call lacks samples.
    """
    complete: list[CellKey] = []
    of_all_starts, of_this_start = read_manifest(out).cells, {cell.id for cell in cells}
    stored = stored_samples(parts, of_all_starts, len(chosen))
    for cell_id, key in of_all_starts.items():
        name = f"{key.explainer_text} by {key.metric_text}"
        if (stored[cell_id] | ~chosen).all():
            complete.append(key)
        elif cell_id in of_this_start:
            raise _lost(out, name)
        else:
            complain(
                f"{name} was computed earlier for fewer samples, so it is not shown; to complete it, repeat the run "
                "with this explainer and this metric"
            )
    return complete


def _lost(out: Path, content: str) -> UserError:
    """Return the error to raise if a part file was damaged or lost during the run."""
    return UserError(f"a part of {content} in {out} was damaged or lost during the run; start the run again")
