"""The records of a submission, read batch by batch: a score per cell, part and image.

Texts stay dictionary-encoded and only numbers are kept, so that memory follows from the number of rows, which is
bounded before any is read (`leaderboard.parquet`).
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
from saliency_bench.leaderboard.parquet import check_table
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
    """The scores of a submission.

    Attributes:
        ids: of its images.
        groups: of these images, None where an image is in no group.
        outcomes: {cell id: scores and counts that follow from its records}.
    """

    ids: list[str]
    groups: list[str | None]
    outcomes: dict[str, Outcome]

    @cached_property
    def codes(self) -> np.ndarray:
        """Cluster numbers (n,) of the images."""
        return cluster_codes(self.ids, self.groups)

    @property
    def values(self) -> dict[str, np.ndarray]:
        """Scores (n,) of the images by cell id, NaN where an image has none."""
        return {cell_id: outcome.scores for cell_id, outcome in self.outcomes.items()}

    @cached_property
    def _index(self) -> dict[str, int]:
        return {image_id: index for index, image_id in enumerate(self.ids)}

    def positions(self, ids: Iterable[str]) -> np.ndarray:
        """Return the index of each of these images among `self.ids`, -1 for an image that is not there."""
        return np.array([self._index.get(image_id, -1) for image_id in ids], dtype=np.intp)


def read_recorded(result: Result, path: Path) -> Recorded:
    """Read the records of a result, within the bounds of `leaderboard.parquet`.

    Raises:
        UserError: The file is invalid; the text names it and what is wrong.
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
    """Collect the scores of records.

    Args:
        result: that the records belong to.
        batches: of the records.
        rows: how many there are in all.
        path: names the records in messages.

    Raises:
        UserError: The records are not exactly those of the result's cells.
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
    """Return {cell id: {column: the text that each row of the cell must have}}."""
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
    """Return the batch with its texts dictionary-encoded."""
    columns = [column.dictionary_encode() if column.type == pa.string() else column for column in batch.columns]
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


@dataclass
class _Slot:
    """The values of a score, or of a part of it, over the images; `seen`: which images had a row."""

    values: np.ndarray
    seen: np.ndarray


@dataclass
class _Collected:
    """What the batches have said so far.

    Attributes:
        names: by `_names`.
        places: {image id: its index}, in the order of appearance.
        groups: of the images, in this order.
        letters: of all ids and groups so far.
        stretches: of rows of a cell, so far.
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
        """Check the rows of a batch and keep their scores."""
        for name in TEXTS:
            self._check_texts(batch.column(name), name)
        for name in ("cell_id", "image_id"):
            if batch.column(name).null_count:
                raise UserError(f"{self.path}: {name} must not be null")
        for cell_id, rows in records.stretches(batch):
            # A cell whose rows are scattered would make the loop as long as the table, at a slice per row.
            self.stretches += 1
            if self.stretches > 1000 + 10 * len(self.names):
                raise UserError(f"{self.path}: the rows of a cell must stand together")
            if cell_id not in self.names:
                raise UserError(f"{self.path}: cell_id {cell_id} is not in {RESULT}")
            self._check_names(cell_id, rows)
            for part, where in records.places_by_part(rows):
                self._add_part(cell_id, part, rows.take(pa.array(where)))

    def _check_texts(self, column: pa.DictionaryArray, name: str) -> None:
        """Raise UserError for texts that are too long, or cannot be printed where the board shows them."""
        most = LONGEST_NAME if name in ("image_id", "group") else LONGEST
        if (pc.max(pc.binary_length(column.dictionary)).as_py() or 0) > most:
            raise UserError(f"{self.path}: column {name} holds a text of more than {most:,} bytes")
        if name in ("part", "reason"):
            for text in column.dictionary.to_pylist():
                if text is not None and not text.isprintable():
                    raise UserError(f"{self.path}: column {name} holds a text that cannot be printed ({text!r})")

    def _check_names(self, cell_id: str, rows: pa.RecordBatch) -> None:
        """Raise UserError for rows that name another dataset, model, explainer or metric than their cell."""
        for column, expected in self.names[cell_id].items():
            present = rows.column(column).unique().to_pylist()
            if strange := [text for text in present if text != expected]:
                raise UserError(f"{self.path}: {column} of cell {cell_id} must be {expected}, not {strange[0]}")

    def _add_part(self, cell_id: str, part: str | None, rows: pa.RecordBatch) -> None:
        """Keep the values of a part of a cell, or of its score (`part` None)."""
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
        """Count why images have no score or a marked one; each image without a score has a reason."""
        if rows.column("reason").filter(pc.is_null(rows.column("value"))).null_count:
            raise UserError(f"{self.path}: value must be finite, or null with its reason")
        left_out, marks = records.counted_reasons(rows)
        self.left_out[cell_id] += left_out
        self.marks[cell_id] += marks
        if max(len(self.left_out[cell_id]), len(self.marks[cell_id])) > REASONS:
            raise UserError(f"{self.path}: cell {cell_id} has more than {REASONS} different reasons")

    def _places(self, rows: pa.RecordBatch) -> np.ndarray:
        """Return the index (n,) of each row's image.

        Python looks at each distinct pair of id and group once: id * (groups + 1) + group numbers the pairs, 0 being
        no group.
        """
        ids, groups = (rows.column(name) for name in ("image_id", "group"))
        width = len(groups.dictionary) + 1
        codes = ids.indices.to_numpy().astype(np.int64) * width + groups.indices.fill_null(-1).to_numpy() + 1
        pairs, inverse = np.unique(codes, return_inverse=True)
        id_codes, group_codes = np.divmod(pairs, width)
        named = ids.dictionary.take(pa.array(id_codes)).to_pylist()
        grouped = (
            pa.concat_arrays([pa.nulls(1, pa.string()), groups.dictionary]).take(pa.array(group_codes)).to_pylist()
        )
        positions = [self._place(*pair) for pair in zip(named, grouped, strict=True)]
        return np.array(positions, dtype=np.intp)[inverse]

    def _place(self, image_id: str, group: str | None) -> int:
        """Return the index of an image, a new one if it was not seen before. Its group is the same in all rows."""
        position = self.places.setdefault(image_id, len(self.places))
        if position == len(self.groups):
            self.groups.append(group)
            self.letters += len(image_id) + len(group or "")
            if len(self.groups) > self.images:
                raise UserError(f"{self.path}: image_id {image_id} is not in each of its cells")
            if self.letters > MOST_LETTERS:
                raise UserError(f"{self.path}: the ids of its images have more than {MOST_LETTERS:,} letters")
        elif self.groups[position] != group:
            raise UserError(f"{self.path}: image {image_id} has two groups, {self.groups[position]} and {group}")
        return position

    def finished(self) -> Recorded:
        """Return all scores. Raise UserError if an image has no row for one of them."""
        ids = list(self.places)
        for (cell_id, part), slot in self.slots.items():
            if not slot.seen.all():
                missing = ids[int(np.argmin(slot.seen))] if len(ids) == self.images else "any"
                where = f"cell {cell_id}" if part is None else f"part {part} of cell {cell_id}"
                raise UserError(f"{self.path}: {where} has no row for image_id {missing}")
        outcomes = {}
        parts: dict[str, dict[str, np.ndarray]] = {cell_id: {} for cell_id in self.names}
        for (cell_id, part), slot in self.slots.items():
            if part is not None:
                parts[cell_id][part] = slot.values
        for cell_id, part_values in parts.items():
            scores = self.slots[cell_id, None].values
            outcomes[cell_id] = Outcome(scores, part_values, self.left_out[cell_id], self.marks[cell_id])
        return Recorded(ids, self.groups, outcomes)
