"""Read the records of a submission, which contain a score for each cell, part and image, and check them.

Untrusted records are read in a child process with limited memory and time (`board.submission_cache`).
"""

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from saliency_bench.board.submission_schema import RESULT, TEXTS, Result
from saliency_bench.errors import UserError, one_line
from saliency_bench.read import records
from saliency_bench.read.public_names import recorded_name
from saliency_bench.read.run_folder import CellScores
from saliency_bench.read.statistics.clusters import cluster_codes
from saliency_bench.read.summary import Outcome
from saliency_bench.score_notes import MARKS, PARTS_ONLY, has_parts_only
from saliency_bench.utils.files import check_readable

LARGEST = 300_000_000  # maximum size of records.parquet in bytes
MOST_ROWS = 5_000_000
LONGEST_NAME = 500  # maximum length in bytes of an image's id or group
LONGEST = 2000  # maximum length in bytes of any other string
REASONS = 200  # maximum number of distinct reasons in a cell


@dataclass(frozen=True)
class Recorded:
    """The scores of a submission.

    Attributes:
        ids: Ids of the images.
        groups: Groups of the images, None for an image without a group.
        outcomes: {cell id: scores and counts that are derived from the records}.
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
        """{cell id: scores (n,) of the images}. The score of an image is NaN if it is missing."""
        return {cell_id: outcome.scores for cell_id, outcome in self.outcomes.items()}

    @cached_property
    def scores(self) -> CellScores:
        """The scores of all cells."""
        return CellScores(self.ids, self.groups, self.values)

    @cached_property
    def _index(self) -> dict[str, int]:
        return {image_id: index for index, image_id in enumerate(self.ids)}

    def positions(self, ids: Iterable[str]) -> np.ndarray:
        """Return the index of each image in `self.ids`, or -1 if the image is missing."""
        return np.array([self._index.get(image_id, -1) for image_id in ids], dtype=np.intp)


def read_recorded(result: Result, path: Path) -> Recorded:
    """Read the records that belong to a result.

    Raises:
        UserError: The file is invalid. The message names the file and the problem.
    """
    try:
        check_readable(path, LARGEST)
        about = pq.read_metadata(path)
        if about.num_rows > MOST_ROWS:
            raise ValueError(f"the file has {about.num_rows:,} rows, more than the limit of {MOST_ROWS:,}")
        _check_schema(about.schema.to_arrow_schema())
        table = pq.read_table(path, read_dictionary=TEXTS)
    except MemoryError:
        raise
    except Exception as error:  # the decoder can raise any error for a damaged file
        raise UserError(f"{path} cannot be read: {one_line(error)}") from error
    return recorded(result, table, path)


def recorded(result: Result, table: pa.Table, path: Path) -> Recorded:
    """Check the records and collect the scores from them.

    Raises:
        UserError: The records do not match the result's cells exactly.
    """
    try:
        _check_values(table)
        slots = [(cell.cell_id, part) for cell in result.cells for part in (None, *cell.parts)]
        if len(table) > (most := result.dataset.used * len(slots)):
            raise ValueError(f"the file has {len(table):,} rows, more than the maximum for its cells ({most:,})")
        rows = _Rows(table)
        _check_names(result, rows)
        images = _SubmittedImages(rows)
        if (count := len(images.ids)) != result.dataset.used:
            raise ValueError(f"the file has {count:,} images, but dataset.used is {result.dataset.used:,}")
        values = iter(_by_slot(slots, rows, images))
        outcomes = {}
        for cell in result.cells:  # same order as the slots
            score, parts = next(values), {part: next(values) for part in cell.parts}
            outcomes[cell.cell_id] = Outcome(score, parts, Counter(), Counter())
        _count_reasons(outcomes, rows)
    except ValueError as error:
        raise UserError(f"{path}: {error}") from error
    return Recorded(images.ids, images.groups, outcomes)


class _Rows:
    """The rows of the records, encoded as numbers so that Python loops over distinct strings instead of rows.

    Attributes:
        values: Values of the rows, shape (rows,), NaN for null.
        texts: {column: distinct strings}.
        codes: {column: (rows,) index of each row's string in `texts`, -1 for null}.
    """

    def __init__(self, table: pa.Table):
        """Encode a table. Raise ValueError if the dictionary of a column contains null or a duplicate string."""
        self.values = table["value"].to_numpy()
        self.texts: dict[str, list[str]] = {}
        self.codes: dict[str, np.ndarray] = {}
        for name in TEXTS:
            column = table[name]
            encoded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
            whole = encoded.unify_dictionaries().combine_chunks()
            self.texts[name] = whole.dictionary.to_pylist()
            self.codes[name] = pc.fill_null(whole.indices, -1).to_numpy(zero_copy_only=False)
            if len(set(self.texts[name]) - {None}) < len(self.texts[name]):
                raise ValueError(f'the dictionary of column "{name}" contains null or a duplicate string')

    def text(self, name: str, row: int) -> str | None:
        code = self.codes[name][row]
        return None if code < 0 else self.texts[name][code]


class _SubmittedImages:
    """The images that occur in the records, in order of first appearance.

    Attributes:
        ids: Ids of the images.
        groups: Groups of the images, None for an image without a group.
        places: (rows,) index of each row's image in `ids`.
    """

    def __init__(self, rows: _Rows):
        """Collect the images from the rows. Raise ValueError if an image belongs to two groups."""
        codes, groups = rows.codes["image_id"], rows.codes["group"]
        present, first_rows, inverse = np.unique(codes, return_index=True, return_inverse=True)
        order = np.argsort(first_rows)
        first_rows = first_rows[order]
        self.places = np.argsort(order)[inverse]
        other = groups != groups[first_rows][self.places]
        if other.any():
            image = self.places[other].min()
            second = np.flatnonzero(other & (self.places == image))[0]
            pair = " and ".join(str(rows.text("group", row)) for row in (first_rows[image], second))
            raise ValueError(f"image {rows.text('image_id', first_rows[image])} has two groups, {pair}")
        self.ids = [rows.texts["image_id"][code] for code in present[order].tolist()]
        self.groups = [rows.text("group", row) for row in first_rows.tolist()]


def _check_schema(schema: pa.Schema) -> None:
    if twice := [name for name, times in Counter(schema.names).items() if times > 1]:
        raise ValueError(f'column "{twice[0]}" occurs twice')
    for column in records.SCHEMA:
        if column.name not in schema.names or schema.field(column.name).type != column.type:
            raise ValueError(f'column "{column.name}" must be {column.type}')
    if extra := set(schema.names) - set(records.SCHEMA.names):
        raise ValueError(f'unknown column "{min(extra)}"')


def _check_values(table: pa.Table) -> None:
    """Raise ValueError if a string is too long or unprintable, or if a score has neither a value nor a reason."""
    for name in TEXTS:
        most = LONGEST_NAME if name in ("image_id", "group") else LONGEST
        texts = _texts(table[name])
        if (pc.max(pc.binary_length(texts)).as_py() or 0) > most:
            raise ValueError(f'column "{name}" contains a string of more than {most:,} bytes')
        if name in ("part", "reason"):
            for text in texts.drop_null().to_pylist():
                if not text.isprintable():
                    raise ValueError(f'column "{name}" contains a string that cannot be printed ({text!r})')
    for name in ("cell_id", "image_id"):
        if table[name].null_count:
            raise ValueError(f"{name} must not be null")
    # Parquet distinguishes NaN from null, but pandas would merge them.
    is_finite = pc.all(pc.is_finite(table["value"])).as_py()  # ignores null; None if all values are null
    scores = pc.and_(pc.is_null(table["part"]), pc.is_null(table["value"]))
    if is_finite is False or pc.any(pc.and_(scores, pc.is_null(table["reason"]))).as_py():
        raise ValueError("value must be finite, or null with a reason")


def _texts(column: pa.ChunkedArray) -> pa.Array:
    """Return the distinct strings of a column. Columns that were read from a file are dictionary-encoded."""
    if pa.types.is_dictionary(column.type) and column.num_chunks:
        return column.unify_dictionaries().chunk(0).dictionary
    return pc.unique(column)


def _check_names(result: Result, rows: _Rows) -> None:
    """Raise ValueError if a row's cell is not in the result, or if its dataset, model, explainer or metric differs."""
    common = {
        "dataset": recorded_name(result.dataset.id, result.dataset.fingerprint),
        "split": result.dataset.split,
        "model": recorded_name(result.model.id, result.model.digest),
    }
    names = {
        cell.cell_id: {
            "explainer": cell.explainer,
            "explainer_options": json.dumps(cell.explainer_options, sort_keys=True),
            "metric": cell.metric,
            "metric_options": json.dumps(cell.metric_options, sort_keys=True),
            **common,
        }
        for cell in result.cells
    }
    cells, known = rows.codes["cell_id"], rows.texts["cell_id"]
    wrong = np.array([cell_id not in names for cell_id in known], dtype=bool)[cells]
    for column in next(iter(names.values())):
        codes = {text: code for code, text in enumerate(rows.texts[column])}
        expected = [codes.get(names[cell_id][column], -2) if cell_id in names else -2 for cell_id in known]
        wrong |= rows.codes[column] != np.array(expected, dtype=np.int64)[cells]
    if not wrong.any():
        return
    row = int(np.argmax(wrong))  # first row that contradicts its cell
    cell_id = known[cells[row]]
    if cell_id not in names:
        raise ValueError(f"cell_id {cell_id} is not in {RESULT}")
    for column, text in names[cell_id].items():
        if (stated := rows.text(column, row)) != text:
            shown = "null" if stated is None else stated
            raise ValueError(f"{column} of cell {cell_id} must be {text}, not {shown}")


def _by_slot(slots: list[tuple[str, str | None]], rows: _Rows, images: _SubmittedImages) -> np.ndarray:
    """Return the value of each slot for each image, shape (slots, images). Missing values are NaN.

    A slot is (cell id, part), where part is None for the score.

    Raises:
        ValueError: A row is missing, occurs twice, or belongs to no slot.
    """
    # Encode pairs of a cell and a part as integers (part 0: no part). Python then loops over pairs and not over rows.
    cells, parts = rows.texts["cell_id"], rows.texts["part"]
    width, count = len(parts) + 1, len(images.ids)
    pairs, inverse = np.unique(
        rows.codes["cell_id"].astype(np.int64) * width + rows.codes["part"] + 1, return_inverse=True
    )
    places = inverse * count + images.places
    if len(np.unique(places)) < len(places):
        raise ValueError("the same image_id occurs twice in a cell")
    if len(places) != len(slots) * count:
        raise ValueError(
            f"the file has {len(places):,} rows, but must have {len(slots) * count:,}: one row for each combination "
            f"of an image ({count:,}) and a score or partial score ({len(slots):,})"
        )
    numbers, number_of_pair = {slot: number for number, slot in enumerate(slots)}, []
    for cell_code, part_code in zip(*np.divmod(pairs, width), strict=True):
        slot = cells[cell_code], parts[part_code - 1] if part_code else None
        if slot not in numbers:
            raise ValueError(
                f"the records contain part {slot[1]} of cell {slot[0]}, but {RESULT} does not contain this part"
            )
        number_of_pair.append(numbers[slot])
    # The number of rows is correct and no slot occurs twice, so each slot has exactly one row per image.
    values = np.full((len(slots), count), np.nan)
    values[np.array(number_of_pair, dtype=np.intp)[inverse], images.places] = rows.values
    return values


def _count_reasons(outcomes: dict[str, Outcome], rows: _Rows) -> None:
    """Count the reasons for missing scores and the remarks on scores in each cell (see `records.counted_reasons`)."""
    reasons, scores = rows.texts["reason"], (rows.codes["part"] < 0) & (rows.codes["reason"] >= 0)
    cells = rows.codes["cell_id"][scores].astype(np.int64) * 2 + np.isfinite(rows.values[scores])
    of_cells, times = np.unique(cells * max(len(reasons), 1) + rows.codes["reason"][scores], return_counts=True)
    for (of_cell, code), count in zip(
        zip(*np.divmod(of_cells, max(len(reasons), 1)), strict=True), times.tolist(), strict=True
    ):
        cell_id, has_value, reason = rows.texts["cell_id"][of_cell // 2], of_cell % 2 == 1, reasons[code]
        outcome = outcomes[cell_id]
        if has_value or has_parts_only(reason):
            outcome.marks.update({mark: count * n for mark, n in Counter(reason.split(MARKS)).items()})
            del outcome.marks[PARTS_ONLY]
        else:
            outcome.left_out[reason] += count
        if max(len(outcome.left_out), len(outcome.marks)) > REASONS:
            raise ValueError(f"cell {cell_id} has more than {REASONS} different reasons")
