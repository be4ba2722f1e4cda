"""Maps that a submitter publishes along with the scores, so that anybody can score them again.

    FOLDER/maps-00000.npz   ids (n), values float16 (n, H, W), scale float32 (n); name: the method they are of

A map is its values times its scale, rounded like the maps that a run keeps. Maps are rounded before they are scored, so
the published maps give the published scores to the last bit. One shard at a time is in memory.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path

import numpy as np

from saliency_bench.errors import UserError, one_line
from saliency_bench.map_sources.stored_maps import packed
from saliency_bench.utils.files import load_arrays, save_arrays

SHARD = re.compile(r"maps-[0-9]{5}\.npz")
LARGEST_SHARD = 64_000_000  # bytes, packed and unpacked
PER_SHARD = 256  # maps at most
MOST_VALUES = 12_000_000  # of a shard
MOST_SHARDS = 2000
PUBLISHED = "published-maps"  # in the folder of the run that scores them


def shards_in(folder: Path) -> list[Path]:
    """Return the files of maps in a folder, sorted; none if there is no such folder."""
    return sorted(path for path in folder.iterdir() if SHARD.fullmatch(path.name)) if folder.is_dir() else []


def as_published(values: np.ndarray) -> np.ndarray:
    """Return the map (H, W) float32 that readers of its published form get."""
    rounded, scale = packed(values)
    return rounded.astype(np.float32) * np.float32(scale)


def write_maps(folder: Path, name: str, maps: Iterable[tuple[str, np.ndarray]]) -> list[Path]:
    """Write the maps of the method `name` as shards, and return their paths.

    Args:
        folder: where they are written.
        name: of the method.
        maps: (image id, values (H, W)) of each map.

    Raises:
        UserError: There are more maps than a submission may have.
    """
    given = iter(maps)
    written: list[Path] = []
    step = PER_SHARD
    while shard := list(islice(given, 1)):
        # All maps have one size, that of the prepared frame; the first says how many a shard may have.
        step = max(1, min(PER_SHARD, MOST_VALUES // max(shard[0][1].size, 1)))
        shard += islice(given, step - 1)
        if len(written) == MOST_SHARDS:
            raise UserError(f"there are more than {MOST_SHARDS * step:,} maps, the most that a submission may have")
        rounded = [packed(values) for _, values in shard]
        save_arrays(
            path := folder / f"maps-{len(written):05d}.npz",
            name=np.array(name), ids=np.array([image_id for image_id, _ in shard]),
            values=np.stack([values for values, _ in rounded]),
            scale=np.array([scale for _, scale in rounded], dtype=np.float32),
        )  # fmt: skip
        written.append(path)
    return written


class PublishedMaps(Mapping[str, np.ndarray]):
    """{image id: map (H, W) float32} of a method, in the order of its shards, each of which is read when needed."""

    def __init__(self, places: Mapping[str, Path]):
        """Keep where the maps are: {image id: the shard that holds its map}."""
        self._places = places
        self._last: tuple[Path, dict[str, np.ndarray]] | None = None

    def __getitem__(self, image_id: str) -> np.ndarray:
        path = self._places[image_id]
        if self._last is None or self._last[0] != path:
            self._last = path, {key: values for _, key, values in _read(path)}
        return self._last[1][image_id]

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


def maps_in(folder: Path) -> dict[str, PublishedMaps]:
    """Check all maps in a submission's folder, and return {method: its maps}.

    Raises:
        UserError: A file of maps is invalid.
    """
    places: dict[str, dict[str, Path]] = {}
    for path in shards_in(folder)[:MOST_SHARDS]:
        for name, image_id, _ in _read(path):
            places.setdefault(name, {})[image_id] = path
    return {name: PublishedMaps(shards) for name, shards in places.items()}


def find_maps(folder: Path, name: str, ids: Collection[str]) -> dict[str, np.ndarray]:
    """Return {image id: map (H, W)} of the images `ids` by the method `name`, as far as they were submitted.

    Raises:
        UserError: A file of maps is invalid.
    """
    maps: dict[str, np.ndarray] = {}
    for path in shards_in(folder)[:MOST_SHARDS]:
        if len(maps) == len(ids):
            break
        if _mentions(path, name, ids):
            maps |= {image_id: values for method, image_id, values in _read(path) if method == name and image_id in ids}
    return maps


def _mentions(path: Path, name: str, ids: Collection[str]) -> bool:
    """Return whether a shard holds one of these images by the method `name`, without unpacking its values."""
    try:
        arrays = load_arrays(path, LARGEST_SHARD, ("name", "ids"))
        return str(arrays["name"]) == name and not set(ids).isdisjoint(arrays["ids"].tolist())
    except Exception as error:  # whatever a damaged file makes the decoder say
        raise UserError(f"{path} cannot be read: {one_line(error)}") from error


def _read(path: Path) -> list[tuple[str, str, np.ndarray]]:
    """Return (method, image id, map) of each map of a shard. Raise UserError if it is invalid."""
    try:
        return list(_shard(path))
    except Exception as error:  # whatever a damaged file makes the decoder say
        raise UserError(f"{path} cannot be read: {one_line(error)}") from error


def _shard(path: Path) -> Iterator[tuple[str, str, np.ndarray]]:
    """Yield (method, image id, map) of each map of a shard. Raise whatever a damaged file makes its decoder raise."""
    arrays = load_arrays(path, LARGEST_SHARD)
    name, ids, values, scale = (arrays[key] for key in ("name", "ids", "values", "scale"))
    kinds = (name.dtype.kind, ids.dtype.kind, values.dtype, scale.dtype)
    if kinds != ("U", "U", np.float16, np.float32) or values.ndim != 3 or not len(ids) == len(values) == len(scale):
        raise ValueError("its arrays are not those of maps")
    if not (np.isfinite(values).all() and np.isfinite(scale).all()):
        raise ValueError("a map holds NaN or infinite values")
    for image_id, rounded, factor in zip(ids.tolist(), values, scale, strict=True):
        yield str(name), image_id, rounded.astype(np.float32) * factor
