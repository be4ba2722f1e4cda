"""Part files: the results that a run has computed so far.

Each file is written once, and used only if its content matches its name.

    scores/000000272-HASH.parquet           scores of some samples; the first is sample 272 of the run
    predictions/000000272-HASH.parquet      predictions of the classifier
    maps/EXPLAINER/000000272-HASH.parquet   maps of one explainer, in a run that keeps maps
    thumbnails/000000272-HASH.parquet       small maps for the report

HASH is the hash of the file's bytes, so damage is detected. Results are grouped into files according to computing time.
Two runs with the same settings may therefore have different part files, but the tables made from these files are
identical. Each group, such as an explainer, is one row group. Its rows are sorted by key, such as a cell, and then by
`position`, the position of the sample in the run. The file's metadata contains notes in JSON:

    format    format of part files
    run       hash of the run's identity (`RunStore.run`)
    folder    name of the folder
    groups    {group: {key: number of rows}} in the order of the file
    entries   notes on results that were computed together (`PartNote`)
"""

import json
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from hashlib import sha256
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from saliency_bench.read import DIGITS, PART
from saliency_bench.read.identity import Identity
from saliency_bench.utils.files import write_with
from saliency_bench.utils.hashing import hash_of, sha256_of
from saliency_bench.utils.messages import complain
from saliency_bench.utils.parquet_pages import check_pages

FORMAT = 3
NOTES = b"saliency-bench"
POSITION = "position"  # column of a sample's position in the run
LISTED = 3  # names of ignored files that a message lists


@dataclass(frozen=True)
class StoredResult:
    """Rows that were computed together, from samples of one batch.

    Attributes:
        group: Id of the explainer; any constant for predictions.
        positions: Positions of the samples in the run, ascending.
        tables: {key: rows, sorted by `position`}; for scores, keys are ids of cells.
        about: Further notes, as JSON data.
    """

    group: str
    positions: Sequence[int]
    tables: dict[str, pa.Table]
    about: dict = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """Return the size of the rows in memory, in bytes."""
        return sum(table.nbytes for table in self.tables.values())


@dataclass(frozen=True)
class PartNote:
    """Note about results in a part file. Results that differ only in the position of the first sample share a note.

    Attributes:
        group: As in `StoredResult`.
        keys: Keys of the results' tables.
        starts: For each result, the position of its first sample in the run.
        offsets: Positions of a result's samples relative to its first sample.
        about: As in `StoredResult`.
    """

    group: str
    keys: tuple[str, ...]
    starts: tuple[int, ...]
    offsets: tuple[int, ...]
    about: dict = field(default_factory=dict)

    @classmethod
    def read(cls, notes: dict) -> "PartNote":
        """Create a note from JSON data, converting lists to tuples."""
        lists = {name: tuple(value) for name, value in notes.items() if isinstance(value, list)}
        return cls(**(notes | lists))

    def positions(self, offsets: Sequence[int] | None = None) -> np.ndarray:
        """Return the positions of the samples in the run; `offsets` replaces the offsets of the note."""
        inside = self.offsets if offsets is None else offsets
        return (np.array(self.starts, int)[:, None] + np.array(inside, int)).ravel()


@dataclass(frozen=True, eq=False)
class Part:
    """A part file whose notes match its folder and name.

    Attributes:
        path: The file.
        groups: {group: {key: number of its rows}}, in the order of the file.
        entries: Notes on results that were computed together.
    """

    path: Path
    groups: dict[str, dict[str, int]]
    entries: list[PartNote]

    def read(self, group: str, columns: list[str] | None = None) -> dict[str, pa.Table]:
        """Return {key: rows} of a group; {} if the file has no such group."""
        if group not in self.groups:
            return {}
        with pq.ParquetFile(self.path) as file:
            rows = file.read_row_group(list(self.groups).index(group), columns).replace_schema_metadata(None)
        tables, start = {}, 0
        for key, count in self.groups[group].items():
            tables[key] = rows.slice(start, count)
            start += count
        return tables

    def is_whole(self) -> bool:
        """Return whether the file's bytes match its name."""
        return sha256_of(self.path).startswith(self.path.stem[-DIGITS:])


@dataclass(frozen=True)
class PartFolder:
    """Part files in one folder.

    Attributes:
        path: The folder.
        run: `RunStore.run` of the run.
    """

    path: Path
    run: str

    def write(self, results: Sequence[StoredResult]) -> Path:
        """Write results to one file and return its path. The results must not be empty."""
        groups: dict[str, dict[str, pa.Table]] = {}
        for group in sorted({result.group for result in results}):
            tables: dict[str, list[pa.Table]] = {}
            for result in results:
                if result.group == group:
                    for key, table in result.tables.items():
                        tables.setdefault(key, []).append(table)
            groups[group] = {key: in_order(tables[key]) for key in sorted(tables)}
        content = {
            "format": FORMAT,
            "run": self.run,
            "folder": self.path.name,
            "groups": {group: {key: len(rows) for key, rows in tables.items()} for group, tables in groups.items()},
            "entries": [asdict(entry) for entry in _entries(results)],
        }
        schema = next(iter(results[0].tables.values())).schema
        buffer = pa.BufferOutputStream()
        with pq.ParquetWriter(buffer, schema.with_metadata({NOTES: json.dumps(content)}), compression="zstd") as writer:
            for rows in groups.values():
                table = pa.concat_tables(rows.values())
                writer.write_table(table, row_group_size=max(1, len(table)))
        written = buffer.getvalue()
        first = min(result.positions[0] for result in results)
        path = self.path / f"{first:09d}-{sha256(written).hexdigest()[:DIGITS]}.parquet"
        write_with(path, lambda temporary: temporary.write_bytes(written))
        return path

    def parts(self) -> list[Part]:
        """Return all files whose notes match their folder and name, sorted by name. Their bytes are not checked."""
        return [part for part in map(self._part, self._paths()) if part is not None]

    def is_whole(self) -> bool:
        """Report and delete damaged files, and return whether all files were intact."""
        damaged = [path for path in self._paths() if not sha256_of(path).startswith(path.stem[-DIGITS:])]
        for path in damaged:
            complain(f"{path} is damaged and is recomputed")
            path.unlink()
        return not damaged

    def check(self, redo: Callable[[PartNote], bool] = lambda _: False) -> list[Part]:
        """Delete damaged files and files with an entry that `redo` selects, and return the remaining part files.

        Print a line about files that do not belong to the run. Call this method from one process only.
        """
        self.is_whole()
        parts = self.parts()
        names = {path.name for path in files_in(self.path)} - {part.path.name for part in parts}
        name_ignored(self.path, sorted(names))
        for part in parts:
            if any(map(redo, part.entries)):
                part.path.unlink()
        return [part for part in parts if part.path.exists()]

    def _paths(self) -> list[Path]:
        """Return the files whose names match the pattern of part files, sorted."""
        named = [path for path in files_in(self.path) if PART.fullmatch(path.name)]
        return sorted(path for path in named if path.is_file() and not path.is_symlink())

    def _part(self, path: Path) -> Part | None:
        """Return a part file with its notes; None if the notes do not match its folder and name."""
        try:
            about = pq.read_metadata(path)
            notes = json.loads((about.metadata or {})[NOTES])
            part = Part(path, notes["groups"], [PartNote.read(entry) for entry in notes["entries"]])
            check_pages(path, about)
            rows = [about.row_group(number).num_rows for number in range(about.num_row_groups)]
            expected = FORMAT, self.run, self.path.name, int(path.name.partition("-")[0]), rows
            first, counts = min(min(entry.starts) for entry in part.entries), [*map(_total, part.groups.values())]
            return part if (notes["format"], notes["run"], notes["folder"], first, counts) == expected else None
        except (pa.ArrowException, OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return None


@dataclass(frozen=True)
class RunStore:
    """Part files of a run.

    Attributes:
        out: Folder of the run.
        identity: Identity of the run.
    """

    out: Path
    identity: Identity

    @cached_property
    def run(self) -> str:
        """Return a hash of the run's identity.

        Part files with a different hash are ignored, because their positions refer to other samples.
        """
        return hash_of(self.identity.model_dump(mode="json"))

    @property
    def scores(self) -> PartFolder:
        """Return the folder of the scores."""
        return PartFolder(self.out / "scores", self.run)

    @property
    def thumbnails(self) -> PartFolder:
        """Return the folder of the thumbnails."""
        return PartFolder(self.out / "thumbnails", self.run)

    def maps(self, explainer_id: str) -> PartFolder:
        """Return the folder of an explainer's maps, for a run that keeps maps."""
        return PartFolder(self.out / "maps" / explainer_id, self.run)

    def predictions(self, name: str, schema: pa.Schema) -> PartFolder:
        """Return a folder of predictions with these columns. Files with other columns do not belong to the run."""
        return PartFolder(self.out / name, hash_of(self.run, str(schema)))


def thumbnails(parts: Sequence[Part], explainer_id: str, positions: Collection[int]) -> dict[int, np.ndarray]:
    """Return {position in the run: thumbnail} for the samples that have one. A missing thumbnail is not an error."""
    pictures: dict[int, np.ndarray] = {}
    for part in parts:
        for rows in part.read(explainer_id).values():
            for row in np.flatnonzero(np.isin(rows[POSITION].to_numpy(), list(positions))).tolist():
                levels = np.frombuffer(rows["levels"][row].as_py(), "<i2").astype(np.int16)
                pictures[rows[POSITION][row].as_py()] = levels.reshape(rows["height"][row].as_py(), -1)
    return pictures


def stored_samples(parts: Iterable[Part], keys: Iterable[str], count: int) -> dict[str, np.ndarray]:
    """Return {key: bool (count,)}: whether parts contain results of the key, for each of the first `count` samples."""
    stored = {key: np.zeros(count, bool) for key in keys}
    for entry in (entry for part in parts for entry in part.entries):
        positions = entry.positions()
        positions = positions[positions < count]
        for key in entry.keys:
            if key in stored:
                stored[key][positions] = True
    return stored


def in_order(tables: Sequence[pa.Table]) -> pa.Table:
    """Return the rows of all tables sorted by `position`. If several tables contain a sample, its first row is used."""
    table = pa.concat_tables(tables)
    positions = table[POSITION].to_numpy()
    starts_of_tables = np.cumsum([len(rows) for rows in tables])[:-1]
    steps = np.diff(positions)
    # Usually each table starts after the end of the previous one, and no row has to be moved.
    if (steps >= 0).all() and (steps[starts_of_tables - 1] > 0).all():
        return table
    origins = np.repeat(np.arange(len(tables)), [len(rows) for rows in tables])
    order = np.argsort(positions, kind="stable")
    # If a run is killed after writing a file but before recording it, the next call writes the same rows again.
    _, starts, groups = np.unique(positions[order], return_index=True, return_inverse=True)
    first = origins[order][starts][groups]
    return table.combine_chunks().take(order[origins[order] == first])


def files_in(folder: Path) -> list[Path]:
    """Return the contents of a folder; [] if it does not exist."""
    return list(folder.iterdir()) if folder.is_dir() else []


def _total(counts: dict[str, int]) -> int:
    return sum(counts.values())


def _entries(results: Iterable[StoredResult]) -> list[PartNote]:
    """Return the notes on results. Results that differ only in the position of the first sample share a note."""
    starts: dict[str, set[int]] = {}
    for result in results:
        offsets = [position - result.positions[0] for position in result.positions]
        shared = json.dumps([result.group, sorted(result.tables), offsets, result.about], sort_keys=True)
        starts.setdefault(shared, set()).add(result.positions[0])
    entries = []
    for shared in sorted(starts):
        group, keys, offsets, about = json.loads(shared)
        entries.append(PartNote(group, tuple(keys), tuple(sorted(starts[shared])), tuple(offsets), about))
    return entries


def name_ignored(folder: Path, names: Sequence[str]) -> None:
    """Print one line about files in a run's folder that do not belong to the run."""
    if names:
        more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
        listed = ", ".join(map(repr, names[:LISTED]))
        complain(f"{folder}: ignored files that do not belong to this run: {listed}{more}")
