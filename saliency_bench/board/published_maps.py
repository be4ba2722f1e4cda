"""Maps that a submitter publishes together with the scores so that anyone can recompute the scores.

    FOLDER/maps-00000.npz   ids (n), values float16 (n, H, W), scale float32 (n); name: the method

A map is the product of its values and its scale. The values are rounded in the same way as the maps that a run
stores. Maps are rounded before they are scored, so the published maps reproduce the published scores to the last bit.
Only one shard is in memory at a time. Untrusted shards are read in a child process with limited memory and time.
`result.json` contains the SHA-256 of each shard, so the status of a submission is valid only for these maps.
"""

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from io import BytesIO
from itertools import islice
from pathlib import Path

import numpy as np

from saliency_bench.errors import UserError, one_line
from saliency_bench.read.stored_maps import packed
from saliency_bench.utils.bounded import bounded
from saliency_bench.utils.files import check_readable, load_arrays, save_arrays
from saliency_bench.utils.hashing import known_sha256, sha256_of

SHARD = re.compile(r"maps-[0-9]{5}\.npz")
LARGEST_SHARD = 64_000_000  # maximum size in bytes, both compressed and uncompressed
PER_SHARD = 256  # maximum number of maps per shard
MOST_VALUES = 12_000_000  # maximum number of values per shard
MOST_SHARDS = 2000
PUBLISHED = "published-maps"  # subfolder of the run that scores them
LARGEST_SCALE = 2.0**127  # the largest power of two in float32
# Type and number of axes of each array: name, ids, values and scale.
KINDS, AXES = ("U", "U", np.float16, np.float32), (0, 1, 3, 1)


def shards_in(folder: Path) -> list[Path]:
    """Return the sorted map files in a folder, or [] if the folder does not exist."""
    return sorted(path for path in folder.iterdir() if SHARD.fullmatch(path.name)) if folder.is_dir() else []


def hashes_of(folder: Path) -> list[str]:
    """Return the SHA-256 of each map file in a folder, as stored in `result.json`.

    Raises:
        UserError: The files are not numbered consecutively from 0.
    """
    paths = shards_in(folder)
    if wrong := [path for number, path in enumerate(paths) if path.name != _name(number)]:
        raise UserError(
            f"{wrong[0]} breaks the numbering of the map files; number them consecutively, starting with {_name(0)}"
        )
    return [sha256_of(path) for path in paths]


def _name(number: int) -> str:
    return f"maps-{number:05d}.npz"


def stated_names(hashes: Sequence[str]) -> dict[str, str]:
    """Return {name of a map file: SHA-256 that the submission states}."""
    return {_name(number): stated for number, stated in enumerate(hashes)}


def _shards(folder: Path, hashes: Sequence[str] | None) -> list[Path]:
    """Return the map files to read. Raise UserError if a file's SHA-256 is not the one that the submission states."""
    if hashes is None:
        return shards_in(folder)[:MOST_SHARDS]
    paths = {folder / name: stated for name, stated in stated_names(hashes).items()}
    for path, stated in paths.items():
        try:
            check_readable(path, LARGEST_SHARD)
            found_hash = known_sha256(path)
        except (OSError, ValueError) as error:
            raise UserError(f"{path} cannot be read: {one_line(error)}") from error
        if found_hash != stated:
            raise UserError(f"{path} is not the map file that was submitted: its SHA-256 differs")
    return list(paths)


def as_published(values: np.ndarray) -> np.ndarray:
    """Round a map (H, W) to the values that will be published, float32."""
    rounded, scale = packed(values)
    return rounded.astype(np.float32) * np.float32(scale)


def write_maps(folder: Path, name: str, maps: Iterable[tuple[str, np.ndarray]]) -> list[Path]:
    """Write the maps of a method as shards, and return the paths.

    Args:
        folder: Output folder.
        name: Name of the method.
        maps: (image id, values (H, W)) of each map.

    Raises:
        UserError: There are more maps than a submission may contain, or values are too large for float32.
    """
    given = iter(maps)
    written: list[Path] = []
    step = PER_SHARD
    while shard := list(islice(given, 1)):
        # All maps have the size of the preprocessed images, so the first map determines the number of maps per shard.
        step = max(1, min(PER_SHARD, MOST_VALUES // max(shard[0][1].size, 1)))
        shard += islice(given, step - 1)
        if len(written) == MOST_SHARDS:
            raise UserError(f"there are more than {MOST_SHARDS * step:,} maps, the limit for a submission")
        rounded = [packed(values) for _, values in shard]
        for (image_id, _), (_, scale) in zip(shard, rounded, strict=True):
            if not scale <= LARGEST_SCALE:
                raise UserError(
                    f"the map of image {image_id} has values of 1.7e38 or more; divide all maps by a constant"
                )
        save_arrays(
            path := folder / _name(len(written)),
            name=np.array(name), ids=np.array([image_id for image_id, _ in shard]),
            values=np.stack([values for values, _ in rounded]),
            scale=np.array([scale for _, scale in rounded], dtype=np.float32),
        )  # fmt: skip
        written.append(path)
    return written


class PublishedMaps(Mapping[str, np.ndarray]):
    """Maps of a method that are loaded on access, {image id: map (H, W) float32}, in the order of the shards."""

    def __init__(self, name: str, places: Mapping[str, Path]):
        """Store the name of the method and {image id: path of the shard that contains its map}."""
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


def maps_in(folder: Path, hashes: Sequence[str] | None = None) -> dict[str, PublishedMaps]:
    """Check all maps in a submission's folder, and return {method: maps}.

    Args:
        folder: Folder of the submission.
        hashes: SHA-256 of each map file as stated in the submission. Other files are not read. If None, all map files
            are read, and no hashes are compared.

    Raises:
        UserError: A map file is invalid or was replaced, or an image has two maps.
    """
    places: dict[str, dict[str, Path]] = {}
    for path in _shards(folder, hashes):
        name, ids = json.loads(_in_child(names_of, path))
        _check_new(path, ids, known := places.setdefault(name, {}))
        known.update(dict.fromkeys(ids, path))
    return {name: PublishedMaps(name, shards) for name, shards in places.items()}


def find_maps(
    folder: Path, name: str, ids: Collection[str], hashes: Sequence[str] | None = None
) -> dict[str, np.ndarray]:
    """Load submitted maps of a method, and return {image id: map (H, W)}.

    Args:
        folder: Folder of the submission.
        name: Name of the method.
        ids: Ids of the images.
        hashes: SHA-256 of each map file, as for `maps_in`.

    Raises:
        UserError: A map file is invalid or was replaced, or an image has two maps.
    """
    maps: dict[str, np.ndarray] = {}
    for path in _shards(folder, hashes):
        _check_new(path, further := _maps(path, [name, *ids]), maps)
        maps |= further
    return maps


def _check_new(path: Path, ids: Iterable[str], known: Collection[str]) -> None:
    """Raise UserError if an image of a shard already has a map. It would be unclear which of the two maps to use."""
    if twice := next((image_id for image_id in ids if image_id in known), None):
        raise UserError(f"{path} cannot be read: image {one_line(twice, 100)} has two maps")


def _maps(path: Path, wanted: Sequence[str]) -> dict[str, np.ndarray]:
    """Return {image id: map} for those maps in a shard that `chosen_of` selects."""
    with np.load(BytesIO(_in_child(chosen_of, path, wanted)), allow_pickle=False) as arrays:
        ids, values, scale = (arrays[key] for key in ("ids", "values", "scale"))
    return {
        image_id: rounded.astype(np.float32) * factor
        for image_id, rounded, factor in zip(ids.tolist(), values, scale, strict=True)
    }


def _in_child(function: Callable[..., bytes], path: Path, *args: object) -> bytes:
    """Apply a function to an untrusted shard in a child process. Raise UserError if the shard is invalid."""
    try:
        return bounded(function, str(path), *args)
    except UserError as error:
        raise UserError(f"{path} cannot be read: {error}") from error


def names_of(path: str) -> bytes:
    """Check a shard, and return [method, ids of the images] as JSON. `bounded` calls this in a child process."""
    arrays = _checked(Path(path))
    return json.dumps([str(arrays["name"]), arrays["ids"].tolist()]).encode()


def chosen_of(path: str, wanted: Sequence[str]) -> bytes:
    """Return the ids, values and scales of selected maps in a shard, in .npz format.

    `bounded` calls this in a child process.

    Args:
        path: Path of the shard.
        wanted: Method followed by the ids of images. If there are no ids, all images are selected.
    """
    name, *ids = wanted
    arrays = load_arrays(Path(path), LARGEST_SHARD, ("name", "ids"))  # values are loaded only if needed
    chosen = np.full(arrays["ids"].shape, str(arrays["name"]) == name)
    chosen &= np.isin(arrays["ids"], ids) if ids else True
    if chosen.any():
        arrays = _checked(Path(path))
    buffer = BytesIO()
    np.savez(buffer, **{key: arrays[key][chosen] if chosen.any() else [] for key in ("ids", "values", "scale")})
    return buffer.getvalue()


def _checked(path: Path) -> dict[str, np.ndarray]:
    """Return the arrays of a shard.

    Raise ValueError if they are invalid, or the decoder's error if the file is damaged.
    """
    arrays = load_arrays(path, LARGEST_SHARD)
    name, ids, values, scale = (arrays[key] for key in ("name", "ids", "values", "scale"))
    kinds = (name.dtype.kind, ids.dtype.kind, values.dtype, scale.dtype)
    axes = name.ndim, ids.ndim, values.ndim, scale.ndim
    if (kinds, axes) != (KINDS, AXES) or not len(ids) == len(values) == len(scale):
        raise ValueError("it does not contain the arrays of a map file")
    if len(np.unique(ids)) < len(ids):
        raise ValueError("an image has two maps")
    # The product may be infinite although both factors are finite.
    largest = np.abs(values).max(axis=(1, 2), initial=0).astype(np.float64) * scale
    if not (np.isfinite(values).all() and (np.abs(largest) <= np.finfo(np.float32).max).all()):
        raise ValueError("a map contains NaN or infinite values")
    return arrays
