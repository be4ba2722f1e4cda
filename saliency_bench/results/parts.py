"""Part files: what a run has computed so far. Each is whole, and believed only if it is what its name says.

    chunks/EXPLAINER/000017-HASH.parquet          chunk 17, from one explainer
    chunks/EXPLAINER/000000-000511-HASH.parquet   chunks between 0 and 511, made of such files: a span
    predictions/...                               the same, from the classifier

HASH is of the file's bytes, so that no bit flips unseen. The rows are sorted by key (a cell's id; of predictions the
chunk) and by `position`, the sample's place in the run. The notes, JSON in the file's metadata:

    format    of part files
    run       hash of what all parts of a run share, `run_id`
    folder    the folder's name: the explainer's id
    chunks    [first, last] of the name
    groups    [[key, its rows]] in the order of the file; in a span, each is a row group
    entries   what was computed at once: the chunks it is true of, the keys, the positions within each chunk (null: all)
              and whatever else its writer noted
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from saliency_bench.results import DIGITS, PART
from saliency_bench.results.identity import Identity
from saliency_bench.utils.files import write_with
from saliency_bench.utils.hashing import hash_of, sha256_of
from saliency_bench.utils.messages import complain

FORMAT = 1
FEW = 16  # files of a folder that stay as they are
SPAN = 512  # chunks
SAMPLES = 8192  # of a span, unless a chunk has more
MAPS = 256  # of a span of maps: 25 MB of 224 x 224 pixels
NOTES = b"saliency-bench"
POSITION = "position"  # the column of a sample's place in the run
NAMED = 3  # of what is ignored


@dataclass(frozen=True)
class Entry:
    """What was computed at once. positions: within each of the chunks; None: all. about: what its writer noted."""

    chunks: tuple[int, ...]
    keys: tuple[str, ...]
    positions: tuple[int, ...] | None = None
    about: dict = field(default_factory=dict)

    def samples(self, size: int) -> np.ndarray:
        """Their positions in a run of chunks of this size."""
        inside = np.arange(size) if self.positions is None else np.array(self.positions, int)
        return (np.array(self.chunks, int)[:, None] * size + inside).ravel()


@dataclass(frozen=True, eq=False)
class Part:
    """A part file whose notes fit its name. groups: {key: its rows}, in the order of the file."""

    path: Path
    first: int
    last: int
    groups: dict[str, int]
    entries: list[Entry]

    @property
    def is_span(self) -> bool:
        return self.last > self.first

    def read(self, key: str, columns: list[str] | None = None) -> pa.Table:
        """The rows of a key."""
        names = list(self.groups)
        with pq.ParquetFile(self.path) as file:
            if self.is_span:
                return plain(file.read_row_group(names.index(key), columns))
            start = sum(self.groups[name] for name in names[: names.index(key)])
            return plain(file.read(columns).slice(start, self.groups[key]))

    def whole(self, columns: list[str] | None = None) -> dict[str, pa.Table]:
        """{key: its rows}"""
        with pq.ParquetFile(self.path) as file:
            table, tables, start = plain(file.read(columns)), {}, 0
        for key, rows in self.groups.items():
            tables[key] = table.slice(start, rows)
            start += rows
        return tables


@dataclass(frozen=True)
class PartFolder:
    """The part files of one explainer, or those of the classifier.

    run: `run_id`. size: samples of a chunk. span: chunks that one file holds in the end. canonical:
    every sample has a row, and compaction makes spans of all files and notes no more than what follows from the rows,
    so that the files of a finished run are the same whatever stopped it on the way. Only one process at a time may
    `check` or `compact`, while others write.
    """

    path: Path
    run: str
    size: int
    span: int
    canonical: bool = False

    def write(
        self, number: int, tables: Mapping[str, pa.Table], positions: Sequence[int] | None, **about: object
    ) -> None:
        """The rows of a chunk by key, sorted by `position`; about: whatever JSON holds. positions: as in `Entry`."""
        entry = Entry((number,), tuple(sorted(tables)), None if positions is None else tuple(positions), about)
        self.save(number, number, ((key, tables[key]) for key in sorted(tables)), [entry])

    def save(self, first: int, last: int, tables: Iterable[tuple[str, pa.Table]], entries: Sequence[Entry]) -> Path:
        """One file of chunks between `first` and `last`: (key, rows sorted by `position`), sorted by key."""
        held = {key: table for key, table in tables if len(table)}
        groups = [[key, len(table)] for key, table in held.items()]
        content = {"format": FORMAT, "run": self.run, "folder": self.path.name, "groups": groups}
        content["chunks"] = [first, last]
        content["entries"] = [vars(entry) for entry in entries]
        notes = {NOTES: json.dumps(content, sort_keys=True).encode()}
        schema = next(iter(held.values())).schema.with_metadata(notes)
        buffer = pa.BufferOutputStream()
        with pq.ParquetWriter(buffer, schema, compression="zstd") as writer:
            for table in held.values() if last > first else [pa.concat_tables(held.values())]:
                writer.write_table(table.combine_chunks(), row_group_size=len(table))
        written = buffer.getvalue()
        span = f"{first:06d}-{last:06d}" if last > first else f"{first:06d}"
        path = self.path / f"{span}-{sha256(written).hexdigest()[:DIGITS]}.parquet"
        write_with(path, lambda temporary: temporary.write_bytes(written))
        return path

    def parts(self) -> list[Part]:
        """All files whose notes fit their names, the widest first. Their bytes are not checked."""
        return _widest_first(self._part(path) for path in self._paths())

    def is_whole(self) -> bool:
        """Whether no file was damaged; one that was is named and deleted."""
        return self._check_bytes(self._paths())

    def check(self, redo: Callable[[Entry], bool] = lambda _: False) -> list[Part]:
        """`parts`, with whole bytes, without the entries to `redo`, nor files that hold only what others hold too.

        One whose notes do not fit its name is named and ignored.
        """
        self._check_bytes(self._paths())
        found = {path: self._part(path) for path in self._paths()}
        name_ignored(self.path, [path.name for path, part in found.items() if part is None])
        changed = [self._without(part, redo) for part in found.values() if part is not None]
        parts = self.parts() if any(changed) else _widest_first(found.values())
        twice = [part for own in self._by_span(parts) if len(own) > 1 for part in self._held_by_others(own)]
        for part in twice:  # of a compaction that was interrupted
            part.path.unlink()
        return [part for part in parts if part not in twice]

    def compact(self, *, full: bool = False) -> None:
        """Make one file of those of each span, unless there are but a few; full: of spans with all their chunks."""
        if not full and not self.canonical and len(self._paths()) <= FEW:
            return
        least = self.span if full else 1 if self.canonical else 2
        for parts in self._by_span(self.parts()):
            if len(parts) >= least and not (len(parts) == 1 and parts[0].is_span):
                self._check_bytes([part.path for part in parts])
                whole = [part for part in parts if part.path.exists()]
                self._combine(whole, [entry for part in whole for entry in part.entries])

    def strays(self) -> list[str]:
        """The names in the folder that are none of part files."""
        return sorted({path.name for path in files_in(self.path)} - {path.name for path in self._paths()})

    def _paths(self) -> list[Path]:
        named = [path for path in files_in(self.path) if PART.fullmatch(path.name)]
        return sorted(path for path in named if path.is_file() and not path.is_symlink())

    def _check_bytes(self, paths: Iterable[Path]) -> bool:
        damaged = [path for path in paths if not sha256_of(path).startswith(path.stem[-DIGITS:])]
        for path in damaged:
            complain(f"{path} is damaged and is recomputed")
            path.unlink()
        return not damaged

    def _part(self, path: Path) -> Part | None:
        """The file as its notes describe it; None if they do not fit its name."""
        first, *more = map(int, path.stem.split("-")[:-1])
        last = more[0] if more else first
        try:
            notes = json.loads((pq.read_schema(path).metadata or {})[NOTES])
            part = Part(path, first, last, dict(notes["groups"]), [_entry(**entry) for entry in notes["entries"]])
            keys = {key for entry in part.entries for key in entry.keys}
            fits = all(first <= min(entry.chunks) and max(entry.chunks) <= last for entry in part.entries)
            fits = fits and keys >= set(part.groups) and notes["format"] == FORMAT
            fits = fits and (not more or (first % self.span, last) == (0, first + self.span - 1))
            of = notes["run"], notes["folder"], notes["chunks"]
            return part if fits and of == (self.run, self.path.name, [first, last]) else None
        except (pa.ArrowException, OSError, ValueError, KeyError, TypeError):
            return None

    def _by_span(self, parts: Iterable[Part]) -> list[list[Part]]:
        """Those of each span, in the order of `parts`."""
        found: dict[int, list[Part]] = {}
        for part in parts:
            found.setdefault(part.first // self.span, []).append(part)
        return list(found.values())

    def _without(self, part: Part, redo: Callable[[Entry], bool]) -> bool:
        """Drop these entries of a file; whether there are any."""
        kept = [entry for entry in part.entries if not redo(entry)]
        if len(kept) == len(part.entries):
            return False
        if kept:
            self._combine([part], kept)
        else:
            part.path.unlink()
        return True

    def _held_by_others(self, parts: Sequence[Part]) -> list[Part]:
        """Of the files of a span, those of which others that come before hold everything."""
        start = parts[0].first // self.span * self.span * self.size
        known: dict[str, np.ndarray] = {}
        found = []
        for part in parts:
            new = False
            for entry in part.entries:
                samples = entry.samples(self.size) - start
                for key in entry.keys:
                    own = known.setdefault(key, np.zeros(self.span * self.size, bool))
                    new |= not own[samples].all()
                    own[samples] = True
            if not new:
                found.append(part)
        return found

    def _combine(self, parts: Sequence[Part], entries: Sequence[Entry]) -> None:
        """One file of these entries of some files of a span, in whose place it comes."""
        if not parts:
            return
        first = parts[0].first // self.span * self.span
        small = {part.path: part.whole() for part in parts if not part.is_span}

        def tables() -> Iterator[tuple[str, pa.Table]]:
            for key in sorted({key for entry in entries for key in entry.keys}):
                holding = [part for part in parts if key in part.groups]
                table = in_order([small[part.path][key] if part.path in small else part.read(key) for part in holding])
                wanted = np.concatenate([entry.samples(self.size) for entry in entries if key in entry.keys])
                yield key, table.filter(np.isin(table[POSITION].to_numpy(), wanted))

        held = list(tables()) if self.canonical else tables()
        if self.canonical:
            entries = [entry for key, table in held for entry in self._entries_of(key, table)]
        made = self.save(first, first + self.span - 1, held, _merged(entries))
        for part in parts:
            if part.path != made:
                part.path.unlink()

    def _entries_of(self, key: str, table: pa.Table) -> Iterator[Entry]:
        """What follows from the rows of a key: an entry per chunk."""
        chunks, inside = np.divmod(table[POSITION].to_numpy(), self.size)
        for chunk in np.unique(chunks).tolist():
            yield Entry((chunk,), (key,), tuple(inside[chunks == chunk].tolist()))


def run_id(identity: Identity, batch_size: int) -> str:
    """What the parts of a run share; in another run the same numbers of chunks mean other samples."""
    return hash_of(identity.model_dump(mode="json"), batch_size)


def chunks_of(out: Path, explainer_id: str, run: str, batch_size: int) -> PartFolder:
    """The folder of an explainer's chunks in the run's folder `out`."""
    return PartFolder(out / "chunks" / explainer_id, run, batch_size, span_of(batch_size))


def maps_of(out: Path, explainer_id: str, run: str, batch_size: int) -> PartFolder:
    """The folder of the maps of an explainer that a run keeps."""
    return PartFolder(out / "maps" / explainer_id, run, batch_size, span_of(batch_size, MAPS), canonical=True)


def span_of(batch_size: int, samples: int = SAMPLES) -> int:
    """How many chunks of this size one file holds in the end."""
    return min(SPAN, max(2, samples // batch_size))


def stored_samples(parts: Iterable[Part], keys: Iterable[str], chunks: int, size: int) -> dict[str, np.ndarray]:
    """{key: Bool (chunks, size), the samples that the parts hold of it}"""
    found = {key: np.zeros((chunks, size), bool) for key in keys}
    for entry in (entry for part in parts for entry in part.entries):
        samples = entry.samples(size)
        samples = samples[samples < chunks * size]
        for key in entry.keys:
            if key in found:
                found[key].reshape(-1)[samples] = True
    return found


def in_order(tables: Sequence[pa.Table]) -> pa.Table:
    """The rows by `position`, those of a sample as they come; what several tables hold is taken from the first."""
    table = pa.concat_tables(tables)
    positions = table[POSITION].to_numpy()
    if len(tables) == 1 and (np.diff(positions) >= 0).all():
        return table
    origins = np.repeat(np.arange(len(tables)), [len(one) for one in tables])
    order = np.argsort(positions, kind="stable")
    _, starts, groups = np.unique(positions[order], return_index=True, return_inverse=True)
    first = origins[order][starts][groups]
    return table.combine_chunks().take(order[origins[order] == first])


def files_in(folder: Path) -> list[Path]:
    return list(folder.iterdir()) if folder.is_dir() else []


def plain(table: pa.Table) -> pa.Table:
    """Without the notes of a file."""
    return table.replace_schema_metadata(None)


def _entry(chunks: list[int], keys: list[str], positions: list[int] | None, about: dict) -> Entry:
    return Entry(tuple(chunks), tuple(keys), None if positions is None else tuple(positions), about)


def _merged(entries: Iterable[Entry]) -> list[Entry]:
    """Entries that differ in their chunks alone become one."""
    chunks: dict[str, set[int]] = {}
    for entry in entries:
        rest = json.dumps([entry.keys, entry.positions, entry.about], sort_keys=True)
        chunks.setdefault(rest, set()).update(entry.chunks)
    return [
        _entry(sorted(chunks[rest]), keys, positions, about)
        for rest, (keys, positions, about) in sorted((rest, json.loads(rest)) for rest in chunks)
    ]


def _widest_first(parts: Iterable[Part | None]) -> list[Part]:
    found = [part for part in parts if part is not None]
    return sorted(found, key=lambda part: (part.first - part.last, part.path.name))


def name_ignored(folder: Path, names: Sequence[str]) -> None:
    """One line about what lies in a run's folder and is no part of it."""
    if names:
        more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
        complain(f"{folder}: ignored, as not of this run: {', '.join(map(repr, names[:NAMED]))}{more}")
