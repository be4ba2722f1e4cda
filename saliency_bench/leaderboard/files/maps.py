"""Maps that a submitter publishes beside the scores, so that anybody can score them again.

    FOLDER/maps-00000.npz   ids (n), values float16 (n, H, W), scale float32 (n); name: the method they are of

A map is its values times its scale, rounded as the maps that a run keeps. Scores are those of the maps as they are
published, to the last bit: they are rounded before they are scored.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from saliency_bench.errors import UserError, one_line
from saliency_bench.explaining.stored_maps import packed
from saliency_bench.utils.files import load_arrays, save_arrays

SHARD = re.compile(r"maps-[0-9]{5}\.npz")
LARGEST_SHARD = 64_000_000  # bytes, packed and unpacked
PER_SHARD = 256  # maps at most
MOST_VALUES = 12_000_000  # of a shard
MOST_SHARDS = 2000
PUBLISHED = "published-maps"  # in the folder of the run that scores them


def as_published(values: np.ndarray) -> np.ndarray:
    """The map (H, W) float32 that readers of its published form get."""
    rounded, scale = packed(values)
    return rounded.astype(np.float32) * np.float32(scale)


def write_maps(folder: Path, name: str, maps: Mapping[str, np.ndarray]) -> list[Path]:
    """Write the shards of maps {image id: (H, W)} of the method `name`."""
    ids = list(maps)
    size = maps[ids[0]].size if ids else 1
    step = max(1, min(PER_SHARD, MOST_VALUES // size))
    written = []
    for number, start in enumerate(range(0, len(ids), step)):
        own = ids[start : start + step]
        rounded = [packed(maps[image_id]) for image_id in own]
        save_arrays(
            path := folder / f"maps-{number:05d}.npz",
            name=np.array(name), ids=np.array(own), values=np.stack([values for values, _ in rounded]),
            scale=np.array([scale for _, scale in rounded], dtype=np.float32),
        )  # fmt: skip
        written.append(path)
    return written


def maps_in(folder: Path) -> dict[str, dict[str, np.ndarray]]:
    """{method: {image id: map (H, W)}} of a submission's folder; {} where no maps were submitted.

    Raises: UserError for files that are not maps.
    """
    found: dict[str, dict[str, np.ndarray]] = {}
    paths = sorted(path for path in folder.iterdir() if SHARD.fullmatch(path.name))
    for path in paths[:MOST_SHARDS]:
        try:
            for name, image_id, values in _shard(path):
                found.setdefault(name, {})[image_id] = values
        except Exception as error:  # whatever a damaged file makes the decoder say
            raise UserError(f"{path} cannot be read: {one_line(error)}") from error
    return found


def _shard(path: Path) -> Iterator[tuple[str, str, np.ndarray]]:
    arrays = load_arrays(path, LARGEST_SHARD)
    name, ids, values, scale = (arrays[key] for key in ("name", "ids", "values", "scale"))
    kinds = (name.dtype.kind, ids.dtype.kind, values.dtype, scale.dtype)
    if kinds != ("U", "U", np.float16, np.float32) or values.ndim != 3 or not len(ids) == len(values) == len(scale):
        raise ValueError("its arrays are not those of maps")
    if not (np.isfinite(values).all() and np.isfinite(scale).all()):
        raise ValueError("a map holds NaN or infinite values")
    for image_id, own, factor in zip(ids.tolist(), values, scale, strict=True):
        yield str(name), image_id, own.astype(np.float32) * factor
