"""The records of a submission, read batch by batch: a score per cell, part and image, and nothing else of them.

Texts stay dictionaries and numbers are all that is kept, so that memory follows from the number of rows, which is known
and bounded before any is read (`pages`).
"""

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from saliency_bench.errors import UserError, one_line
from saliency_bench.leaderboard.files.pages import check_table
from saliency_bench.leaderboard.schema import RESULT, TEXTS, Result
from saliency_bench.results import records
from saliency_bench.results.clusters import cluster_codes
from saliency_bench.results.public_names import recorded_name
from saliency_bench.results.summary import Outcome

LARGEST = 300_000_000  # bytes of a records.parquet
MOST_ROWS = 5_000_000
MOST_IMAGES = 500_000
MOST_LETTERS = 50_000_000  # of the ids and groups of all images
LONGEST_NAME = 500  # letters of the id or group of an image
LONGEST = 2000  # bytes of any other text
REASONS = 200  # different ones in a cell
Slot = tuple[str, str | None]  # cell id and part; None: the score itself


@dataclass(frozen=True)
class Recorded:
    """What the records of a submission say.

    Attributes:
        ids: of the images.
        groups: of the images, None where one stands for itself.
        outcomes: {cell id: what its records say}.
    """

    ids: list[str]
    groups: list[str | None]
    outcomes: dict[str, Outcome]

    @cached_property
    def codes(self) -> np.ndarray:
        """Return (n,) the number of the cluster of each image."""
        return cluster_codes(self.ids, self.groups)

    @property
    def values(self) -> dict[str, np.ndarray]:
        """Return {cell id: a score per image, NaN where there is none}."""
        return {cell_id: outcome.scores for cell_id, outcome in self.outcomes.items()}


def read_recorded(result: Result, path: Path) -> Recorded:
    """Return what the records in a file say.

    Raises:
        UserError: Something is wrong with the file, which is seen before it is unpacked to more than it may be.
    """
    try:
        about = check_table(path, LARGEST, MOST_ROWS)
        check_columns(about.schema.to_arrow_schema(), path)
        with pq.ParquetFile(path, metadata=about, read_dictionary=TEXTS) as file:
            return recorded(result, file.iter_batches(records.READ), about.num_rows, path)
    except UserError:
        raise
    except Exception as error:  # whatever a damaged file makes the decoder say
        raise UserError(f"{path} cannot be read: {one_line(error)}") from error


def check_columns(schema: pa.Schema, path: Path) -> None:
    """Raise UserError for a table whose columns are not exactly those of records."""
    if twice := [name for name, times in Counter(schema.names).items() if times > 1]:
        raise UserError(f"{path}: column {twice[0]} comes twice")
    for column in records.SCHEMA:
        if column.name not in schema.names or schema.field(column.name).type != column.type:
            raise UserError(f"{path}: column {column.name} must be {column.type}")
    if extra := set(schema.names) - set(records.SCHEMA.names):
        raise UserError(f"{path}: unknown column {min(extra)}")


def recorded(result: Result, batches: Iterable[pa.RecordBatch], rows: int, path: Path) -> Recorded:
    """Return what so many rows of records say.

    Raises:
        UserError: They are not those of the result's cells.
    """
    slots = [(cell.cell_id, part) for cell in result.cells for part in (None, *cell.parts)]
    most = result.dataset.used * len(slots)
    if rows > most:
        raise UserError(f"{path} has {rows:,} rows, more than its cells can have ({most:,})")
    if rows % len(slots) or not rows:
        raise UserError(
            f"{path} has {rows:,} rows for {len(slots):,} scores and parts of scores; each must have a row for each of "
            "the same images"
        )
    collected = _Collected(_names(result), slots, rows // len(slots), path)
    for batch in batches:
        collected.add(_coded(batch))
    return collected.finished()


def _names(result: Result) -> dict[str, dict[str, str]]:
    """Return {cell id: what some columns of each of its rows must say}."""
    common = {
        "dataset": recorded_name(result.dataset.id, result.dataset.fingerprint),
        "split": result.dataset.split,
        "model": recorded_name(result.model.id, result.model.digest),
    }
    return {
        cell.cell_id: {
            "explainer": cell.explainer,
            "explainer_options": json.dumps(cell.explainer_options, sort_keys=True),
            "metric": cell.metric,
            "metric_options": json.dumps(cell.metric_options, sort_keys=True),
            **common,
        }
        for cell in result.cells
    }


def _coded(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return records with texts as dictionaries."""
    columns = [column.dictionary_encode() if column.type == pa.string() else column for column in batch.columns]
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


@dataclass
class _Slot:
    """A score, or a part of it, of each image; which images it has seen."""

    values: np.ndarray
    seen: np.ndarray


@dataclass
class _Collected:
    """What the batches have said so far.

    Attributes:
        names: of `_names`.
        images: how many there are.
        path: of the file, for messages.
    """

    names: dict[str, dict[str, str]]
    wanted: list[Slot]
    images: int
    path: Path
    places: dict[str, int] = field(default_factory=dict)
    groups: list[str | None] = field(default_factory=list)
    letters: int = 0
    stretches: int = 0

    def __post_init__(self) -> None:
        if self.images > MOST_IMAGES:
            raise UserError(f"{self.path} has {self.images:,} images, of which at most {MOST_IMAGES:,} are read")
        self.slots = {
            slot: _Slot(np.full(self.images, np.nan), np.zeros(self.images, dtype=bool)) for slot in self.wanted
        }
        self.left_out: dict[str, Counter[str]] = {cell_id: Counter() for cell_id in self.names}
        self.marks: dict[str, Counter[str]] = {cell_id: Counter() for cell_id in self.names}

    def add(self, batch: pa.RecordBatch) -> None:
        """Take a batch."""
        for name in TEXTS:
            self._check_texts(batch.column(name), name)
        for name in ("cell_id", "image_id"):
            if batch.column(name).null_count:
                raise UserError(f"{self.path}: {name} must not be null")
        for cell_id, rows in records.stretches(batch):
            self.stretches += 1
            if self.stretches > 1000 + 10 * len(self.names):
                raise UserError(f"{self.path}: the rows of a cell must stand together")
            if cell_id not in self.names:
                raise UserError(f"{self.path}: cell_id {cell_id} is not in {RESULT}")
            self._check_names(cell_id, rows)
            for part, where in records.places_by_part(rows):
                self._add_part(cell_id, part, rows.take(pa.array(where)))

    def _check_texts(self, column: pa.DictionaryArray, name: str) -> None:
        """Raise UserError for a text that is too long or cannot be printed."""
        most = LONGEST_NAME if name in ("image_id", "group") else LONGEST
        if (pc.max(pc.binary_length(column.dictionary)).as_py() or 0) > most:
            raise UserError(f"{self.path}: column {name} holds a text of more than {most:,} bytes")
        if name in ("part", "reason"):  # which are shown
            for text in column.dictionary.to_pylist():
                if text is not None and not text.isprintable():
                    raise UserError(f"{self.path}: column {name} holds a text that cannot be printed ({text!r})")

    def _check_names(self, cell_id: str, rows: pa.RecordBatch) -> None:
        """Raise UserError for rows that name another explainer, metric, dataset or model than their cell."""
        for column, expected in self.names[cell_id].items():
            texts = rows.column(column).unique().to_pylist()
            if strange := [text for text in texts if text != expected]:
                raise UserError(f"{self.path}: {column} of cell {cell_id} must be {expected}, not {strange[0]}")

    def _add_part(self, cell_id: str, part: str | None, rows: pa.RecordBatch) -> None:
        """Take the values of a part of a cell."""
        if (slot := self.slots.get((cell_id, part))) is None:
            raise UserError(f"{self.path}: part {part} of cell {cell_id} is not in both {RESULT} and the records")
        places, values = self._places(rows), records.numbers(rows)
        if len(np.unique(places)) < len(places) or slot.seen[places].any():
            raise UserError(f"{self.path}: image_id occurs twice in a cell")
        if not np.isfinite(rows.column("value").drop_null().to_numpy()).all():
            raise UserError(f"{self.path}: value must be finite, or null with its reason")
        slot.values[places], slot.seen[places] = values, True
        if part is None:
            self._count_reasons(cell_id, rows)

    def _count_reasons(self, cell_id: str, rows: pa.RecordBatch) -> None:
        """Count why samples have no score."""
        if rows.column("reason").filter(pc.is_null(rows.column("value"))).null_count:
            raise UserError(f"{self.path}: value must be finite, or null with its reason")
        left_out, marks = records.counted_reasons(rows)
        self.left_out[cell_id] += left_out
        self.marks[cell_id] += marks
        if max(len(self.left_out[cell_id]), len(self.marks[cell_id])) > REASONS:
            raise UserError(f"{self.path}: cell {cell_id} has more than {REASONS} different reasons")

    def _places(self, rows: pa.RecordBatch) -> np.ndarray:
        """Return (n,) the place of each row's image; an image has one group, whatever row it stands in."""
        ids, groups = (rows.column(name) for name in ("image_id", "group"))
        width = len(groups.dictionary) + 1
        codes = ids.indices.to_numpy().astype(np.int64) * width + groups.indices.fill_null(-1).to_numpy() + 1
        pairs, inverse = np.unique(codes, return_inverse=True)
        of_id, of_group = np.divmod(pairs, width)
        named = ids.dictionary.take(pa.array(of_id)).to_pylist()
        grouped = pa.concat_arrays([pa.nulls(1, pa.string()), groups.dictionary]).take(pa.array(of_group)).to_pylist()
        places = [self._place(*pair) for pair in zip(named, grouped, strict=True)]
        return np.array(places, dtype=np.intp)[inverse]

    def _place(self, image_id: str, group: str | None) -> int:
        """Return the place of an image."""
        place = self.places.setdefault(image_id, len(self.places))
        if place == len(self.groups):
            self.groups.append(group)
            self.letters += len(image_id) + len(group or "")
            if len(self.groups) > self.images:
                raise UserError(f"{self.path}: image_id {image_id} is not in each of its cells")
            if self.letters > MOST_LETTERS:
                raise UserError(f"{self.path}: the ids of its images have more than {MOST_LETTERS:,} letters")
        elif self.groups[place] != group:
            raise UserError(f"{self.path}: image {image_id} has two groups, {self.groups[place]} and {group}")
        return place

    def finished(self) -> Recorded:
        """Return all that was taken.

        Raises:
            UserError: Rows are missing.
        """
        ids = list(self.places)
        for (cell_id, part), slot in self.slots.items():
            if not slot.seen.all():
                missing = ids[int(np.argmin(slot.seen))] if len(ids) == self.images else "any"
                subject = f"cell {cell_id}" if part is None else f"part {part} of cell {cell_id}"
                raise UserError(f"{self.path}: {subject} has no row for image_id {missing}")
        outcomes = {}
        parts: dict[str, dict[str, np.ndarray]] = {cell_id: {} for cell_id in self.names}
        for (cell_id, part), slot in self.slots.items():
            if part is not None:
                parts[cell_id][part] = slot.values
        for cell_id, of_cell in parts.items():
            scores = self.slots[cell_id, None].values
            outcomes[cell_id] = Outcome(scores, of_cell, self.left_out[cell_id], self.marks[cell_id])
        return Recorded(ids, self.groups, outcomes)
