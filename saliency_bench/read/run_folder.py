"""Read the files of a finished run and check each of them."""

import zlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import NoReturn, Self
from zipfile import BadZipFile

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from saliency_bench.errors import UserError, one_line, unknown
from saliency_bench.read import WRITTEN, records
from saliency_bench.read.cell import CellResult, explainer_names, read_cells
from saliency_bench.read.facts import SummaryFacts, Timings, check_facts
from saliency_bench.read.identity import Identity
from saliency_bench.read.manifest import MANIFEST, check_format, read_manifest
from saliency_bench.read.statistics.clusters import cluster_codes
from saliency_bench.read.statistics.ranking import read_contrasts
from saliency_bench.read.statistics.reliability import FILE as RELIABILITY
from saliency_bench.read.stored_maps import StoredMaps
from saliency_bench.read.summary import FORMAT
from saliency_bench.utils.files import check_regular, load_arrays, parse_json, read_bytes
from saliency_bench.utils.hashing import sha256_of

NEEDED = {"dataset", "model", "masks", "target", "cells", "comparisons", "command", "provenance", "faults",
          "halved_chunks"}  # fmt: skip
SCORES = ["image_id", "group", "part", "value"]
DERIVED = ("records.parquet", "predictions.parquet", RELIABILITY, "timings.json", "examples.npz")  # with the summary
PREDICTED = ("correct", "target_confidence")  # columns of predictions.parquet that analyses use
PICTURES = ("ids", "kinds", "images", "masks")  # arrays of examples.npz, besides thumbnails per explainer
RESUME = "start the run again to complete it"
CHANGED = "start the run again to rewrite it"
SAME = 1e-9  # relative difference between two means of the same scores


@dataclass(frozen=True)
class CellScores:
    """Scores of the cells of a run, as arrays over the same images.

    Attributes:
        ids: Ids of the images, in the order of their first record.
        groups: Cluster of each image; None if the image is its own cluster.
        values: {cell id: score of each image}, NaN for omitted samples, and for all samples of an aggregate.
        parts: {cell id: parts of the scores (n, P)} of the cells that are aggregates.
    """

    ids: list[str]
    groups: list[str | None]
    values: dict[str, np.ndarray]
    parts: dict[str, np.ndarray] = field(default_factory=dict)

    @classmethod
    def read(cls, stretches: Iterable[tuple[str, pa.RecordBatch]], part: str | None = None) -> Self:
        """Read the scores, or the values of one part, from rows with the columns `SCORES` (`records.by_cell`)."""
        images = _Images()
        values: dict[str, np.ndarray] = {}
        for cell_id, rows in stretches:  # in merged runs, cells may cover different images
            column = rows.column("part")
            chosen = rows.filter(pc.is_null(column) if part is None else pc.equal(column, part))
            if len(chosen):
                places = images.places(chosen)
                values[cell_id] = images.widened(values.get(cell_id, np.empty(0)))
                values[cell_id][places] = records.numbers(chosen)
        for cell_id, scores in values.items():
            values[cell_id] = images.widened(scores)
        return cls(images.ids.to_pylist(), images.groups, values)

    @cached_property
    def position(self) -> dict[str, int]:
        """Return {image id: its index in `ids`}."""
        return {image_id: index for index, image_id in enumerate(self.ids)}

    def codes(self, ids: Sequence[str] | None = None) -> np.ndarray:
        """Return the cluster number (`cluster_codes`) of each of these images, by default of all images."""
        ids = self.ids if ids is None else ids
        return cluster_codes(ids, [self.groups[self.position[image_id]] for image_id in ids])

    def oriented(self, cell: CellResult) -> np.ndarray:
        """Return the scores of a cell, negated if lower is better."""
        return self.values[cell.cell_id] if cell.higher_is_better else -self.values[cell.cell_id]

    def takes_part(self, cell: CellResult) -> np.ndarray:
        """Return bool (n,): whether each sample has a score or, if the cell is an aggregate, at least one part."""
        columns = self.parts.get(cell.cell_id)
        if not cell.aggregate or columns is None:
            return np.isfinite(self.values[cell.cell_id])
        return np.isfinite(columns).any(axis=1)


@dataclass(frozen=True)
class RunFiles:
    """Content of the files of a run besides its summary.

    Attributes:
        scores: Scores and parts from records.parquet.
        timings: timings.json.
        examples: Arrays of examples.npz.
        samples: {image id: label, prediction and mask} of the examples.
        identity: Settings that all cells share, from run.json; None in a folder without this file.
    """

    scores: CellScores
    timings: dict = field(default_factory=dict)
    examples: dict[str, np.ndarray] = field(default_factory=dict)
    samples: dict[str, dict] = field(default_factory=dict)
    identity: Identity | None = None


def read_files(folder: Path, cells: list[CellResult]) -> RunFiles:
    """Read the files of a finished run and check that they match the cells of its summary.

    Raises:
        UserError: A file is missing, cannot be read, has changed, or contradicts the summary.
    """
    try:
        scores = _scores(folder / "records.parquet", cells)
        examples = _examples(folder / "examples.npz")
        ids = pa.array(map(str, examples.get("ids", [])), pa.string())
        samples = samples_of(folder, ids, cells[0].cell_id)
        timings = _timings(folder / "timings.json")
    except FileNotFoundError as error:
        raise UserError(f"{folder} has no {Path(error.filename).name}; {RESUME}") from error
    for cell in cells:
        _check_value(folder, cell, scores)
    for name in DERIVED:  # the hashes also detect changed groups, and files of another run
        if (folder / name).exists():
            _check_unchanged(folder / name)
    manifest = read_manifest(folder) if (folder / MANIFEST).exists() else None
    if manifest is not None and not {cell.cell_id for cell in cells} <= manifest.cells.keys():
        raise UserError(f"{folder / MANIFEST} belongs to a different run than {folder / 'summary.json'}; {CHANGED}")
    return RunFiles(scores, timings, examples, samples, None if manifest is None else manifest.identity)


def _scores(path: Path, cells: list[CellResult]) -> CellScores:
    """Return the scores of all cells in the records, and the parts of the cells that are aggregates."""
    with _checked(path):
        scores = CellScores.read(records.by_cell(path, SCORES))
        values = records.by_part(path, [cell.cell_id for cell in cells if cell.aggregate], scores.ids)
    parts = {key: np.stack(list(parts.values()), axis=1) for key, parts in values.items() if parts}
    return replace(scores, parts=parts)


def read_table(path: Path, schema: pa.Schema, columns: Sequence[str] = ()) -> pa.Table:
    """Read a table of a finished run, and check that the file has not changed since the run wrote it.

    Args:
        path: File of the table.
        schema: Types that the columns must have.
        columns: Columns to read, except for those that the file lacks. By default, all columns are read.

    Raises:
        UserError: The file is missing, cannot be read, or has changed.
    """
    try:
        with _checked(path):
            names = [name for name in pq.read_schema(path).names if name in (columns or schema.names)]
            if columns:
                table = records.read_columns(path, names, schema)
            else:
                records.check_columns(path, names, schema)
                table = pq.read_table(path)
    except FileNotFoundError as error:
        raise UserError(f"{path.parent} has no {path.name}; {RESUME}") from error
    _check_unchanged(path)
    return table


def read_parts(folder: Path, cell_ids: Collection[str], ids: Sequence[str]) -> dict[str, dict[str, np.ndarray]]:
    """Return {cell id: {part: values (n,) in the order of `ids`, NaN if missing}} from the records of a run.

    Raises:
        UserError: The file cannot be read or has changed.
    """
    path = folder / "records.parquet"
    with _checked(path):
        values = records.by_part(path, cell_ids, ids)
    _check_unchanged(path)
    return values


def _check_value(folder: Path, cell: CellResult, scores: CellScores) -> None:
    """Raise UserError if a cell has a different number of scores in the records, or its value is not their mean."""
    values = scores.values.get(cell.cell_id)
    count = 0 if values is None else int(scores.takes_part(cell).sum())
    if count != cell.n or values is None:
        raise UserError(
            f"records.parquet of {folder} has {count} scores of {cell.explainer_text} by {cell.metric_text}, but "
            f"summary.json has {cell.n}; {RESUME}"
        )
    values = values[np.isfinite(values)]
    if cell.aggregate or not len(values):
        return
    mean = float(values.mean())
    if cell.value is None or abs(cell.value - mean) > SAME * max(1.0, abs(mean)):
        raise UserError(
            f"{folder / 'summary.json'} has {cell.value} for {cell.explainer_text} by {cell.metric_text}, but the mean "
            f"of the scores is {mean:.6g}; {CHANGED}"
        )


def _check_unchanged(path: Path) -> None:
    """Raise UserError if a file's hash differs from the hash that the run recorded after writing the file.

    A folder without recorded hashes, such as a run that was reduced to some of its cells, is not checked.
    """
    if not (notes := path.parent / WRITTEN).exists():
        return
    hashes = _json(notes).get("files")
    if not isinstance(hashes, dict) or hashes.get(path.name) != sha256_of(path):
        raise UserError(f"{path} has changed since the run wrote it; {CHANGED}")


class MapsByExplainer(dict[str, StoredMaps]):
    """{explainer: maps}. Access to an unknown explainer raises a UserError that suggests similar names."""

    def __missing__(self, name: str) -> NoReturn:
        raise unknown("explainer with kept maps", name, self)


def maps_in(folder: Path) -> dict[str, StoredMaps]:
    """Return the maps in the folder of a run as {explainer with options: maps}.

    Raises:
        UserError: The folder contains no finished run, or the run stored no maps.
    """
    if not (folder / "summary.json").is_file():
        raise UserError(
            f"{folder} is not the folder of a finished run (no summary.json); give the --out folder of a run"
        )
    names = explainer_names(read_manifest(folder).cells.values())
    ids = read_table(folder / "predictions.parquet", records.PREDICTIONS, ["image_id"])["image_id"].to_pylist()
    folders = {name: folder / "maps" / explainer_id for explainer_id, name in names.items()}
    kept = {name: StoredMaps(path, ids) for name, path in folders.items() if path.is_dir()}
    if not kept:
        raise UserError(f"{folder} has no stored maps; start the run again with --keep-maps")
    return MapsByExplainer(kept)


def read_summary(folder: Path) -> dict:
    """Return summary.json of a finished run after checking its fields.

    Raises:
        UserError: The folder contains no finished run, or the summary cannot be read.
    """
    path = folder / "summary.json"
    if not path.is_file():
        raise UserError(
            f"{folder} is not the folder of a finished run (no summary.json); give the --out folder of a run"
        )
    summary = _json(path)
    check_format(path, summary, FORMAT, "give the --out folder of a run, or repeat the run with a different --out")
    if NEEDED - set(summary) or not summary["cells"]:
        raise UserError(f"{path} is not the summary of a run of saliency-bench")
    _check_unchanged(path)
    try:
        check_facts(summary, SummaryFacts)
        read_contrasts(summary["comparisons"])
        read_cells(summary["cells"])
    except UserError as error:
        raise _damaged(path, error) from error
    return summary


def _timings(path: Path) -> dict:
    if not path.exists():
        return {}
    timings = _json(path)
    try:
        check_facts(timings, Timings)
    except UserError as error:
        raise _damaged(path, error) from error
    return timings


def _json(path: Path) -> dict:
    """Return the content of a JSON file; raise UserError if it is damaged."""
    try:
        content = parse_json(read_bytes(path))
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as error:
        raise _damaged(path, error) from error
    if not isinstance(content, dict):
        raise _damaged(path, ValueError("not a JSON object"))
    return content


def _damaged(path: Path, error: Exception) -> UserError:
    if isinstance(error, PermissionError):
        return UserError(f"{path} cannot be read: no permission; change the permissions of the file")
    return UserError(f"{path} is damaged ({one_line(error)}); {RESUME}")


@contextmanager
def _checked(path: Path) -> Iterator[Path]:
    """Yield the path of a table, and report errors that occur while the table is read.

    Raises:
        UserError: The file is damaged.
    """
    try:
        check_regular(path)
        yield path
    except UserError:
        raise
    except FileNotFoundError as error:
        raise FileNotFoundError(2, "no such file", str(path)) from error
    except (pa.ArrowException, OSError, KeyError, ValueError) as error:
        raise _damaged(path, error) from error


class _Images:
    """Image ids in the order of first occurrence, each with its group."""

    def __init__(self) -> None:
        self.ids = pa.array([], pa.string())
        self.groups: list[str | None] = []
        self._last: tuple[pa.Array, np.ndarray] = self.ids, np.empty(0, np.intp)

    def places(self, rows: pa.RecordBatch) -> np.ndarray:
        """Return the index of each row's image, (n,)."""
        if rows.column("image_id").null_count:
            raise ValueError("a row has no image_id")
        ids = rows.column("image_id").cast(pa.string())
        before, places = self._last
        if not ids.equals(before):  # usually all cells have the same images
            indices = pc.index_in(ids, self.ids)
            if indices.null_count:
                self._add(rows.filter(pc.is_null(indices)))
                indices = pc.index_in(ids, self.ids)
            places = indices.to_numpy()
            self._last = ids, places
        return places

    def widened(self, scores: np.ndarray) -> np.ndarray:
        """Append NaN to scores for the images that were added after the scores were created."""
        more = len(self.ids) - len(scores)
        return np.concatenate([scores, np.full(more, np.nan)]) if more else scores

    def _add(self, rows: pa.RecordBatch) -> None:
        names, groups = rows.column("image_id").to_pylist(), rows.column("group").to_pylist()
        new = dict(zip(reversed(names), reversed(groups), strict=True))  # the first row of each image overwrites others
        self.groups += [new[name] for name in dict.fromkeys(names)]
        self.ids = pa.concat_arrays([self.ids, pa.array(dict.fromkeys(names), pa.string())])


def _examples(path: Path) -> dict[str, np.ndarray]:
    """Return the arrays of examples.npz; {} for a run without examples."""
    if not path.exists():
        return {}
    try:
        stored = load_arrays(path)
        return {name: stored[name] for name in (*PICTURES, *stored)}
    except (BadZipFile, zlib.error, ValueError, KeyError, EOFError, OSError) as error:
        raise _damaged(path, error) from error


def samples_of(folder: Path, ids: pa.Array, cell_id: str) -> dict[str, dict]:
    """Return {image id: {column: value}} with the label, prediction, target and mask of these images.

    Args:
        folder: Folder of the run.
        ids: Ids of the images.
        cell_id: Cell from whose records the targets are read.
    """
    if not len(ids):  # without examples, no predictions are shown
        return {}
    names = ["image_id", "label", "prediction", "target"]
    numbers = ["image_id", "confidence", "correct", "mask_share", "left_out"]
    with _checked(folder / "records.parquet") as path:
        stretches = records.by_cell(path, names, [cell_id])
        about = [row for _, rows_of_cell in stretches for row in _of_images(rows_of_cell, ids)]
    with _checked(folder / "predictions.parquet") as path:
        about += _of_images(records.read_columns(path, numbers, records.PREDICTIONS), ids)
    samples: dict[str, dict] = {}
    for row in about:
        samples.setdefault(row["image_id"], {}).update(row)
    return samples


def _of_images(rows: pa.RecordBatch | pa.Table, ids: pa.Array) -> list[dict]:
    return rows.filter(pc.is_in(rows.column("image_id"), ids)).to_pylist()
