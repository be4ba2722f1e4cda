"""Maps that a run stores as float16 in Parquet files, with one row per sample. Files are read on demand.

A map is divided by `scale`, the smallest power of two above its largest magnitude, so that gradients of any size keep
the 11 bits of float16. The relative error of a value is at most 1/2048, and its absolute error at most 2^-25 of the
map's largest magnitude. `map` and `scale` are null if the explainer returned no map.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from saliency_bench.errors import UserError
from saliency_bench.read.records import read_columns
from saliency_bench.utils.hashing import sha256_of
from saliency_bench.utils.messages import complain

SCHEMA = pa.schema(
    [
        ("position", pa.int64()),  # position of the sample in the run
        ("image_id", pa.string()),
        ("scale", pa.float32()),
        ("map", pa.list_(pa.list_(pa.float16()))),
    ]
)


def table_of(positions: Sequence[int], ids: Sequence[str], maps: Sequence[np.ndarray | None]) -> pa.Table:
    """Return a table with one row per sample and its map (H, W), or null if the map is None."""
    rounded = [None if entry is None else packed(entry) for entry in maps]
    known = [entry[0] for entry in rounded if entry is not None]
    scales = [None if entry is None else entry[1] for entry in rounded]
    flat = pa.array(np.concatenate([entry.ravel() for entry in known]) if known else np.empty(0, np.float16))
    widths = np.concatenate([np.full(entry.shape[0], entry.shape[1]) for entry in known] or [np.empty(0, np.int64)])
    rows = pa.ListArray.from_arrays(_offsets(widths), flat)
    heights = _offsets([0 if entry is None else len(entry) for entry in maps])
    nested = pa.ListArray.from_arrays(heights, rows, mask=pa.array([entry is None for entry in maps]))
    return pa.table([pa.array(positions), pa.array(ids), pa.array(scales, pa.float32()), nested], schema=SCHEMA)


def packed(values: np.ndarray) -> tuple[np.ndarray, float]:
    """Return (map (H, W) divided by its scale as float16, scale).

    The scale is the smallest power of two above all magnitudes, or 1 for a map of zeros.
    """
    scale = float(np.ldexp(1.0, int(np.frexp(np.abs(values).max(initial=0).astype(np.float64))[1])))
    return (values.astype(np.float64) / scale).astype(np.float16), scale


def _offsets(lengths: Sequence[int] | np.ndarray) -> pa.Array:
    return pa.array(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32))


class StoredMaps(Mapping[str, np.ndarray]):
    """Mapping {image id: map (H, W) float32} of one explainer in a run. Files are read when a map is accessed.

    `np.asarray(maps)` returns all maps as an array (N, H, W) in the order of the run. Pass the mapping to another run
    as `maps={"name": maps}`.
    """

    def __init__(self, folder: Path, ids: Collection[str] | None = None):
        """Create the mapping for the files in a folder.

        Args:
            folder: Folder of the files.
            ids: Ids of the run's samples, if the files may contain other samples; None for all samples in the files.
        """
        self.folder, self._ids = folder, None if ids is None else set(ids)
        self._last: tuple[Path, pa.Table] | None = None

    @cached_property
    def _places(self) -> dict[str, tuple[Path, int]]:
        """Return {image id: (file, row)}, in the order of positions in the run."""
        by_position: dict[int, tuple[str, Path, int]] = {}
        stored: set[str] = set()
        for path in sorted(self.folder.glob("*.parquet")):
            table = read_columns(path, ["position", "image_id", "scale"], SCHEMA)
            _check_bytes(path)
            stored.update(table["image_id"].to_pylist())
            for row, (position, image_id, scale) in enumerate(zip(*map(pa.ChunkedArray.to_pylist, table), strict=True)):
                if scale is not None and (self._ids is None or image_id in self._ids):
                    by_position.setdefault(position, (image_id, path, row))
        if lost := len((self._ids or set()) - stored):
            complain(
                f"{self.folder} has no maps for {lost} of {len(self._ids or ())} samples; to store them, start the run "
                "again with --keep-maps"
            )
        return {image_id: (path, row) for _, (image_id, path, row) in sorted(by_position.items())}

    def __getitem__(self, image_id: str) -> np.ndarray:
        path, row = self._places[image_id]
        if self._last is None or self._last[0] != path:
            self._last = path, read_columns(path, ["scale", "map"], SCHEMA)
        table = self._last[1]
        stored = table["map"][row]
        widths = set(pc.list_value_length(stored.values).to_pylist()) if stored.is_valid else set()
        if len(widths) != 1 or widths <= {None, 0}:
            raise UserError(f"{path}: the map of {image_id} is not an array (H, W); start the run again to restore it")
        values = stored.values.flatten().to_numpy(zero_copy_only=False).reshape(len(stored), -1)
        return values.astype(np.float32) * np.float32(table["scale"][row].as_py())

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.stack(list(self.values())).astype(dtype or np.float32, copy=False)

    def __repr__(self) -> str:
        return f"StoredMaps({str(self.folder)!r}, {len(self)} maps)"


def _check_bytes(path: Path) -> None:
    """Raise UserError if a file's bytes do not match the hash in its name."""
    known = re.search(r"-([0-9a-f]{16})$", path.stem)
    if known and not sha256_of(path).startswith(known[1]):
        raise UserError(f"{path} is damaged; start the run again to restore it")
