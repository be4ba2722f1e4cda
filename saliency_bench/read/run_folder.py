"""Read a finished run from its folder and check every file."""

import zlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn, Self
from zipfile import BadZipFile

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from saliency_bench.errors import UserError, one_line, unknown
from saliency_bench.read import WRITTEN, records
from saliency_bench.read.cell import CellResult, Interval, as_json, best, explainer_names, metric_names, read_cells
from saliency_bench.read.facts import SummaryFacts, Timings, check_facts
from saliency_bench.read.identity import Identity
from saliency_bench.read.manifest import MANIFEST, check_format, read_manifest
from saliency_bench.read.statistics.clusters import cluster_codes
from saliency_bench.read.statistics.ranking import TEST, Contrast, compare, read_contrasts
from saliency_bench.read.statistics.reliability import Reliability, read_reliability
from saliency_bench.read.stored_maps import StoredMaps
from saliency_bench.read.summary import FORMAT, in_order
from saliency_bench.utils.files import check_regular, load_arrays, parse_json, read_bytes
from saliency_bench.utils.hashing import sha256_of
from saliency_bench.utils.messages import complain

NEEDED = {"dataset", "model", "masks", "target", "cells", "comparisons", "command", "provenance", "faults",
          "halved_chunks"}  # fmt: skip
SCORES = ["image_id", "group", "part", "value"]
PICTURES = ("ids", "kinds", "images", "masks")  # arrays of examples.npz, besides thumbnails per explainer
RESUME = "start the run again to complete it"
CHANGED = "start the run again to rewrite it"
SAME = 1e-9  # relative difference between two means of the same scores


@dataclass(frozen=True)
class ExplainerRow:
    """An explainer with its options: one row of the tables and plots.

    Attributes:
        explainer_id: Id of the explainer.
        text: Name with options; two versions of an explainer have the same text.
        name: Unique name: `text`, followed by the version if two explainers have the same text.
        baseline: Whether the explainer ignores the network.
    """

    explainer_id: str
    text: str
    name: str
    baseline: bool


@dataclass(frozen=True)
class MetricColumn:
    """A metric with its options: one column of the tables, and one plot."""

    metric_id: tuple[str, int | str]
    name: str
    higher_is_better: bool

    @property
    def arrow(self) -> str:
        """Return an arrow that shows whether higher or lower is better."""
        return "↑" if self.higher_is_better else "↓"

    @property
    def direction(self) -> str:
        """Return "higher is better" or "lower is better"."""
        return "higher is better" if self.higher_is_better else "lower is better"


@dataclass(frozen=True)
class RunData:
    """A finished run.

    Attributes:
        folder: Folder of the run.
        cells: Cells with their results.
        ids: Ids of the images.
        groups: Cluster of each image; None if the image is its own cluster.
        values: {cell id: score of each image}, NaN for omitted samples, and for all samples of an aggregate.
        summary: summary.json without its cells.
        timings: timings.json.
        examples: Arrays of examples.npz.
        samples: {image id: label, prediction and mask} of the examples.
        explained: {cell id: number of explained samples} of a merged run, whose cells may differ in this number.
        identity: Settings that all cells share, from run.json; None in a folder without this file.
        parts: {cell id: parts of the scores (n, P)} of the cells that are aggregates.
        folders: {cell id: folder with the records of the cell} of a merged run.
    """

    folder: Path
    cells: list[CellResult]
    ids: list[str]
    groups: list[str | None]
    values: dict[str, np.ndarray]
    summary: dict = field(default_factory=dict)
    timings: dict = field(default_factory=dict)
    examples: dict[str, np.ndarray] = field(default_factory=dict)
    samples: dict[str, dict] = field(default_factory=dict)
    explained: dict[str, int] = field(default_factory=dict)
    identity: Identity | None = None
    parts: dict[str, np.ndarray] = field(default_factory=dict)
    folders: dict[str, Path] = field(default_factory=dict)

    def as_json(self) -> dict:
        """Return the content of summary.json."""
        return self.summary | {"cells": as_json(self.cells)}

    def oriented(self, cell: CellResult) -> np.ndarray:
        """Return the scores of a cell, negated if lower is better."""
        return self.values[cell.cell_id] if cell.higher_is_better else -self.values[cell.cell_id]

    @property
    def subject(self) -> tuple[str, str]:
        """Return (dataset, model), which identify the run in tables."""
        return self.summary["dataset"]["id"], self.summary["model"]["id"]

    def codes(self, ids: Sequence[str] | None = None) -> np.ndarray:
        """Return the cluster number (`cluster_codes`) of each of these images, by default of all images."""
        ids = self.ids if ids is None else ids
        return cluster_codes(ids, [self.groups[self.position[image_id]] for image_id in ids])

    @property
    def all_folders(self) -> list[Path]:
        """Return the folders that contributed cells: one for a single run, several for a merged run."""
        return list(dict.fromkeys([self.folder, *self.folders.values()]))

    def values_by_part(self, cell_ids: Collection[str]) -> dict[str, dict[str, np.ndarray]]:
        """Return {cell id: {part: values (n,) in the order of `ids`, NaN if missing}}, reading each file once."""
        of_folder: dict[Path, list[str]] = {}
        for cell_id in cell_ids:
            of_folder.setdefault(self.folders.get(cell_id, self.folder), []).append(cell_id)
        values: dict[str, dict[str, np.ndarray]] = {}
        for folder, cells in of_folder.items():
            values |= records.by_part(folder / "records.parquet", cells, self.ids)
        return values

    @cached_property
    def predictions(self) -> dict[str, list[Any]]:
        """Return {column: values in the order of `ids`, or None} for the columns `correct` and `target_confidence`.

        An unknown value is None. A column is omitted if a folder lacks it, for example because an earlier version wrote
        the folder.
        """
        files = [folder / "predictions.parquet" for folder in self.all_folders]
        there = [set(pq.read_schema(file).names) if file.is_file() else set() for file in files]
        columns = [name for name in ("correct", "target_confidence") if all(name in names for names in there)]
        if not columns:
            return {}
        rows = [
            row
            for file in files
            for row in records.read_columns(file, ["image_id", *columns], records.PREDICTIONS).to_pylist()
        ]
        by_id = {row["image_id"]: row for row in rows}
        return {name: [by_id.get(image_id, {}).get(name) for image_id in self.ids] for name in columns}

    def takes_part(self, cell: CellResult) -> np.ndarray:
        """Return bool (n,): whether each sample has a score or, if the cell is an aggregate, at least one part."""
        columns = self.parts.get(cell.cell_id)
        if not cell.aggregate or columns is None:
            return np.isfinite(self.values[cell.cell_id])
        return np.isfinite(columns).any(axis=1)

    @cached_property
    def contrasts(self) -> list[Contrast]:
        """Return the comparisons of all pairs of explainers."""
        return read_contrasts(self.summary.get("comparisons", []))

    @cached_property
    def reliability(self) -> dict[str, Reliability]:
        """Return {explainer id: reliability of its maps} for explainers that average random draws."""
        return read_reliability(self.summary)

    @cached_property
    def position(self) -> dict[str, int]:
        """Return {image id: its index in `ids`}."""
        return {image_id: index for index, image_id in enumerate(self.ids)}

    @cached_property
    def cell_ids(self) -> frozenset[str]:
        """Return the ids of the cells."""
        return frozenset(cell.cell_id for cell in self.cells)

    @cached_property
    def best(self) -> frozenset[str]:
        """Return the ids of the cells to mark as best."""
        return best(self.cells)

    @cached_property
    def accuracy(self) -> Interval:
        """Return the accuracy of the classifier with its interval."""
        return Interval.model_validate(self.summary["model"]["accuracy"])

    @property
    def samples_explained(self) -> int:
        """Return the number of explained samples. The last batch counts in full, because batches are never cut."""
        dataset, size = self.summary["dataset"], self.summary["batch_size"]
        if only := self.summary.get("only"):
            return only["samples"]
        return min(-(-dataset["used"] // size) * size, dataset["samples"])

    @cached_property
    def rows(self) -> list[ExplainerRow]:
        """Return the rows of the table, sorted by the mean of the first metric, best first, with baselines last."""
        names = explainer_names(self.cells)
        rows = {
            cell.explainer_id: ExplainerRow(
                cell.explainer_id, cell.explainer_text, names[cell.explainer_id], cell.baseline
            )
            for cell in self.cells
        }
        return [rows[key] for key in in_order(self.cells)]

    @cached_property
    def columns(self) -> list[MetricColumn]:
        """Return the columns of the table, one per metric."""
        names = metric_names(self.cells)
        columns = {cell.metric_id: MetricColumn(cell.metric_id, names[cell.metric_id], cell.higher_is_better)
                   for cell in self.cells}  # fmt: skip
        return list(columns.values())

    @cached_property
    def _by_ids(self) -> dict[tuple, CellResult]:
        """Return {(explainer id, metric id): cell}."""
        return {(cell.explainer_id, cell.metric_id): cell for cell in self.cells}

    def cell(self, row: ExplainerRow, column: MetricColumn) -> CellResult | None:
        """Return the cell of a row and column, if there is one."""
        return self._by_ids.get((row.explainer_id, column.metric_id))

    def cells_of_row(self, row: ExplainerRow) -> list[CellResult]:
        """Return the cells of an explainer."""
        return [cell for column in self.columns if (cell := self.cell(row, column))]

    def cells_of_column(self, column: MetricColumn) -> list[tuple[ExplainerRow, CellResult]]:
        """Return [(row, cell)] for the explainers that have a cell with this metric."""
        return [(row, cell) for row in self.rows if (cell := self.cell(row, column))]


def read_run(folder: Path) -> RunData:
    """Read a finished run and check all its files.

    Raises:
        UserError: The folder contains no finished run, or a file cannot be read.
    """
    summary, cells = read_summary(folder)
    try:
        with _checked(folder / "records.parquet") as path:
            scores = CellScores.read(records.by_cell(path, SCORES))
            parts = _parts(path, cells, scores.ids)
        examples = _examples(folder / "examples.npz")
        ids = pa.array(map(str, examples.get("ids", [])), pa.string())
        samples = samples_of(folder, ids, cells[0].cell_id)
        timings = _timings(folder / "timings.json")
    except FileNotFoundError as error:
        raise UserError(f"{folder} has no {Path(error.filename).name}; {RESUME}") from error
    for cell in cells:
        _check_value(folder, cell, scores)
        columns = parts.get(cell.cell_id)
        count = scores.count(cell.cell_id) if columns is None else int(np.isfinite(columns).any(axis=1).sum())
        if count != cell.n or cell.cell_id not in scores.values:
            raise UserError(
                f"records.parquet of {folder} has {count} scores of {cell.explainer_text} by {cell.metric_text}, but "
                f"summary.json has {cell.n}; {RESUME}"
            )
    _check_unchanged(folder / "records.parquet")  # also detects changed groups, and changed scores with the same mean
    identity = read_manifest(folder).identity if (folder / MANIFEST).exists() else None
    run = RunData(
        folder, cells, scores.ids, scores.groups, scores.values, summary, timings, examples, samples,
        identity=identity, parts=parts,
    )  # fmt: skip
    return run if summary.get("rank_test") == TEST else _ranked_anew(run)


def _ranked_anew(run: RunData) -> RunData:
    """Recompute the ranks and comparisons of a run that was ranked with a different version of the paired test."""
    contrasts, standings = compare(run.cells, run.values, run.codes(), run.summary["seed"], run.parts)
    cells = [cell.model_copy(update=standings[cell.cell_id].as_dict()) for cell in run.cells]
    complain(f"{run.folder} was ranked with a different version of the paired test; its ranks are recomputed here")
    return replace(run, cells=cells, summary=run.summary | {"comparisons": as_json(contrasts), "rank_test": TEST})


def _check_value(folder: Path, cell: CellResult, scores: "CellScores") -> None:
    """Raise UserError if a cell's value is not the mean of its scores."""
    values = scores.values.get(cell.cell_id, np.empty(0))
    values = values[np.isfinite(values)]
    if cell.aggregate or not len(values) or len(values) != cell.n:  # `read_run` reports a wrong n
        return
    mean = float(values.mean())
    if cell.value is None or abs(cell.value - mean) > SAME * max(1.0, abs(mean)):
        raise UserError(
            f"{folder / 'summary.json'} has {cell.value} for {cell.explainer_text} by {cell.metric_text}, but the mean "
            f"of the scores is {mean:.6g}; {CHANGED}"
        )


def _check_unchanged(path: Path) -> None:
    """Raise UserError if a file's hash differs from the hash that the run recorded after writing the file.

    A folder without recorded hashes is not checked, for example a run that was reduced to some of its cells.
    """
    if not (notes := path.parent / WRITTEN).exists():
        return
    hashes = _json(notes).get("files")
    if not isinstance(hashes, dict) or hashes.get(path.name) != sha256_of(path):
        raise UserError(f"{path} has changed since the run wrote it; {CHANGED}")


def _parts(path: Path, cells: list[CellResult], ids: list[str]) -> dict[str, np.ndarray]:
    """Return {cell id: parts (n, P)} of the cells that are aggregates, with rows in the order of `ids`."""
    values = records.by_part(path, [cell.cell_id for cell in cells if cell.aggregate], ids)
    return {key: np.stack(list(parts.values()), axis=1) for key, parts in values.items() if parts}


class MapsByExplainer(dict[str, StoredMaps]):
    """{explainer: maps}. Access to an unknown explainer raises a UserError that suggests similar names."""

    def __missing__(self, name: str) -> NoReturn:
        raise unknown("explainer with kept maps", name, self)


def load_maps(run: Any) -> dict[str, StoredMaps]:
    """Return the maps that a run has stored (`keep_maps`) as {explainer with options: maps}. Files are read on demand.

    The maps of an explainer are a mapping from image ids to arrays (H, W). `np.asarray` converts the mapping to an
    array (N, H, W) in the order of the ids. Maps are stored as float16 with a scale per map, so values are exact to
    0.05 %.

    Args:
        run: Result of `run`, or the folder of a run.

    Raises:
        UserError: The folder contains no run, or the run stored no maps.
    """
    folder = Path(getattr(run, "folder", run))
    if not (folder / "summary.json").is_file():
        raise UserError(f"{folder} is not the folder of a finished run (no summary.json); give the --out of a run")
    names = explainer_names(read_manifest(folder).cells.values())
    table = records.read_columns(folder / "predictions.parquet", ["image_id"], records.PREDICTIONS)
    ids = table["image_id"].to_pylist()
    folders = {name: folder / "maps" / explainer_id for explainer_id, name in names.items()}
    kept = {name: StoredMaps(path, ids) for name, path in folders.items() if path.is_dir()}
    if not kept:
        raise UserError(f"{folder} has no stored maps; start the run again with --keep-maps")
    return MapsByExplainer(kept)


def read_summary(folder: Path) -> tuple[dict, list[CellResult]]:
    """Return (summary.json without its cells, the cells) of a finished run.

    Raises:
        UserError: The folder contains no finished run, or the summary cannot be read.
    """
    path = folder / "summary.json"
    if not path.is_file():
        raise UserError(f"{folder} is not the folder of a finished run (no summary.json); give the --out of a run")
    summary = _json(path)
    check_format(path, summary, FORMAT, "give the --out of a run, or repeat the run with another --out")
    if NEEDED - set(summary) or not summary["cells"]:
        raise UserError(f"{path} is not the summary of a run of saliency-bench")
    _check_unchanged(path)
    try:
        check_facts(summary, SummaryFacts)
        read_contrasts(summary["comparisons"])
        return summary, read_cells(summary.pop("cells"))
    except UserError as error:
        raise _damaged(path, error) from error


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


@dataclass(frozen=True)
class CellScores:
    """Scores that were read from records.

    Attributes:
        ids: Ids of the images, in the order of first occurrence.
        groups: Group of each image; None if the image is its own group.
        values: {cell id: score of each image, or NaN}.
    """

    ids: list[str]
    groups: list[str | None]
    values: dict[str, np.ndarray]

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

    def count(self, cell_id: str) -> int:
        """Return the number of scores of a cell."""
        return int(np.isfinite(self.values.get(cell_id, np.empty(0))).sum())


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
