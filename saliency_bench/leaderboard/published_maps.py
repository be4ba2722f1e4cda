"""Maps that a submitter publishes along with the scores, so that anybody can score them again.

    FOLDER/maps-00000.npz   ids (n), values float16 (n, H, W), scale float32 (n); name: the method they are of

A map is its values times its scale, rounded like the maps that a run keeps. Maps are rounded before they are scored, so
the published maps give the published scores to the last bit. One shard at a time is in memory. Shards of strangers are
read in a bounded child process.
"""

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from io import BytesIO
from itertools import islice
from pathlib import Path

import numpy as np

from saliency_bench.errors import UserError
from saliency_bench.map_sources.stored_maps import packed
from saliency_bench.utils.bounded import bounded
from saliency_bench.utils.files import load_arrays, save_arrays

SHARD = re.compile(r"maps-[0-9]{5}\.npz")
LARGEST_SHARD = 64_000_000  # bytes, packed and unpacked
PER_SHARD = 256  # maps at most
MOST_VALUES = 12_000_000  # of a shard
MOST_SHARDS = 2000
PUBLISHED = "published-maps"  # in the folder of the run that scores them
# Of name, ids, values and scale: types, and numbers of axes.
KINDS, AXES = ("U", "U", np.float16, np.float32), (0, 1, 3, 1)


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

    def __init__(self, name: str, places: Mapping[str, Path]):
        """Keep where the maps of the method `name` are: {image id: the shard that holds its map}."""
        self._name, self._places = name, places
        self._last: tuple[Path, dict[str, np.ndarray]] | None = None

    def __getitem__(self, image_id: str) -> np.ndarray:
        path = self._places[image_id]
        if self._last is None or self._last[0] != path:
            self._last = path, dict(_maps(path, [self._name]))
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
        name, ids = json.loads(_in_child(names_of, path))
        places.setdefault(name, {}).update(dict.fromkeys(ids, path))
    return {name: PublishedMaps(name, shards) for name, shards in places.items()}


def find_maps(folder: Path, name: str, ids: Collection[str]) -> dict[str, np.ndarray]:
    """Return {image id: map (H, W)} of the images `ids` by the method `name`, as far as they were submitted.

    Raises:
        UserError: A file of maps is invalid.
    """
    maps: dict[str, np.ndarray] = {}
    for path in shards_in(folder)[:MOST_SHARDS]:
        if len(maps) < len(ids):
            maps |= _maps(path, [name, *ids])
    return maps


def _maps(path: Path, wanted: Sequence[str]) -> dict[str, np.ndarray]:
    """Return {image id: map} of a shard, as `chosen_of` chooses them."""
    with np.load(BytesIO(_in_child(chosen_of, path, wanted)), allow_pickle=False) as arrays:
        ids, values, scale = (arrays[key] for key in ("ids", "values", "scale"))
    return {
        image_id: rounded.astype(np.float32) * factor
        for image_id, rounded, factor in zip(ids.tolist(), values, scale, strict=True)
    }


def _in_child(function: Callable[..., bytes], path: Path, *args: object) -> bytes:
    """Return what a function says of a stranger's shard. Raise UserError if the shard is invalid."""
    try:
        return bounded(function, str(path), *args)
    except UserError as error:
        raise UserError(f"{path} cannot be read: {error}") from error


def names_of(path: str) -> bytes:
    """Check a shard, and return JSON: [its method, the ids of its images]. Called in a bounded child process."""
    arrays = _checked(Path(path))
    return json.dumps([str(arrays["name"]), arrays["ids"].tolist()]).encode()


def chosen_of(path: str, wanted: Sequence[str]) -> bytes:
    """Return the ids, values and scales of chosen maps of a shard as .npz. Called in a bounded child process.

    Args:
        path: of the shard.
        wanted: the method, and ids of images (none: all).
    """
    name, *ids = wanted
    arrays = load_arrays(Path(path), LARGEST_SHARD, ("name", "ids"))  # values are unpacked where they are wanted only
    chosen = np.full(arrays["ids"].shape, str(arrays["name"]) == name)
    chosen &= np.isin(arrays["ids"], ids) if ids else True
    if chosen.any():
        arrays = _checked(Path(path))
    buffer = BytesIO()
    np.savez(buffer, **{key: arrays[key][chosen] if chosen.any() else [] for key in ("ids", "values", "scale")})
    return buffer.getvalue()


def _checked(path: Path) -> dict[str, np.ndarray]:
    """Return the arrays of a shard. Raise ValueError, or whatever a damaged file makes its decoder raise."""
    arrays = load_arrays(path, LARGEST_SHARD)
    name, ids, values, scale = (arrays[key] for key in ("name", "ids", "values", "scale"))
    kinds = (name.dtype.kind, ids.dtype.kind, values.dtype, scale.dtype)
    axes = name.ndim, ids.ndim, values.ndim, scale.ndim
    if (kinds, axes) != (KINDS, AXES) or not len(ids) == len(values) == len(scale):
        raise ValueError("its arrays are not those of maps")
    if not (np.isfinite(values).all() and np.isfinite(scale).all()):
        raise ValueError("a map holds NaN or infinite values")
    return arrays
