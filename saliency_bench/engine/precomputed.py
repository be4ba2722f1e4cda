"""Precomputed saliency maps, checked and scored like those of any explainer.

Maps come as one file `IMAGE-ID.npy` per image in a folder, or as one Parquet file with the columns `image_id` and `map`
(H lists of W numbers, or H * W numbers row by row). All are checked before anything is scored, and copied, so that what
is scored is what was checked. Nothing is unpickled, and only files that are named after a known image are opened.
"""

import tempfile
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from pathlib import Path
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch

from saliency_bench import registry
from saliency_bench.errors import UserError, one_line
from saliency_bench.explainer import Explainer
from saliency_bench.metric import Metric
from saliency_bench.reasons import NO_MAP, PRECOMPUTED
from saliency_bench.results.public_names import public_label
from saliency_bench.types import Images, Maps, Target
from saliency_bench.utils.seeds import seed_of

BATCH = 16  # rows of Parquet in memory at once


class PrecomputedMaps:
    """Checked maps, in the order of `ids`; called like an explainer, it returns the map of each image.

    Images are identified by their seeds, which are hashes of their ids. A map is for one picture and one target, so a
    call for the same image with other pixels or another target is refused.
    """

    not_finite = NO_MAP  # every map is finite: NaN means that there is none

    def __init__(self, ids: Sequence[str], maps: np.ndarray, seed: int):
        self.maps = maps
        self.place = {seed_of(seed, image_id, "explain"): place for place, image_id in enumerate(ids)}
        self.asked: dict[int, bytes] = {}

    def __call__(self, classifier: object, images: Images, target: Target, *, seeds: Sequence[int]) -> Maps:
        """Maps (B, H, W), NaN where there is none."""
        maps = np.full((len(images), *images.shape[2:]), np.nan, dtype=np.float32)
        for index, seed in enumerate(seeds):
            content = _content(images[index], target[index])
            if self.asked.setdefault(seed, content) != content:
                raise UserError("precomputed maps are of the images as they are; there are no further maps")
            if (place := self.place.get(seed)) is not None:
                maps[index] = self.maps[place]
        return torch.from_numpy(maps)


def explainer_of(name: str, source: Path, samples: dict[str, str], size: tuple[int, int], seed: int,
                 partial: bool) -> Explainer:  # fmt: skip
    """An explainer called `name` that returns the maps in `source`.

    samples: {image id: the name of its file}. size: (H, W) of the prepared frame. seed: the run's. The version is a
    hash of ids and values, so that maps that differ in anything never mix.
    Raises: UserError naming the file, for anything but a map of `size` finite numbers, an unknown image, one that comes
    twice, and, unless `partial`, one that is missing.
    """
    check_name(name)
    found = _from_folder(source, samples, size) if source.is_dir() else _from_parquet(source, samples, size)
    content = blake2b(digest_size=8)
    places: dict[str, int] = {}
    digests: dict[str, bytes] = {}
    with tempfile.TemporaryFile() as copy:
        for image_id, values in found:
            if image_id in places:
                raise UserError(f"{source}: image {image_id} occurs twice")
            places[image_id] = len(places)
            digests[image_id] = blake2b(values.tobytes(), digest_size=16).digest()
            copy.write(values.tobytes())
        copy.flush()
        if not places:
            raise UserError(f"{source} holds no map; give a folder of .npy files, or a Parquet file (image_id, map)")
        missing = [image_id for image_id in samples if image_id not in places]
        if missing and not partial:
            raise UserError(
                f"{source} has no map of image {missing[0]} ({len(missing)} of {len(samples)} are missing); "
                "add them, or leave them out with --partial"
            )
        maps = np.memmap(copy, dtype=np.float32, mode="r", shape=(len(places), *size))
    for image_id in sorted(places):
        content.update(f"{len(image_id)} {image_id}".encode() + digests[image_id])
    return Explainer(name, PrecomputedMaps(list(places), maps, seed), (), f"{PRECOMPUTED}{content.hexdigest()}")


def refuse(metrics: Sequence[Metric], name: str) -> None:
    """Raises: UserError naming a metric that asks for more than one map of each image."""
    for metric in metrics:
        if wants_more(metric):
            raise UserError(
                f"{metric.name} asks for further maps of the same explainer, which precomputed maps cannot "
                f"provide; leave it out, or benchmark {name} as a function: sb.run(explainers=[{name}])"
            )


def wants_more(metric: Metric) -> bool:
    """Whether a metric needs the explainer and not just its map of each image as it is."""
    return "explain" in metric.needs


def check_name(name: str) -> None:
    """Raises: UserError for what cannot be the name of a method here."""
    if not public_label(name):
        raise UserError(f"'{name}' cannot be the name of a method: up to 100 letters, digits, '.', '_' and '-'")
    if name in registry.names("explainers"):
        raise UserError(f"{name} is the name of an explainer of saliency-bench; give your method another --name")


def file_of(image_id: str, position: int) -> str:
    """The name of an image's map: its id, with everything quoted that could lead out of the folder."""
    quoted = quote(image_id, safe="")
    return f"{quoted}.npy" if len(quoted) <= 200 and not quoted.startswith(".") else f"number-{position}.npy"


def _from_folder(folder: Path, samples: dict[str, str], size: tuple[int, int]) -> Iterator[tuple[str, np.ndarray]]:
    files = {file: image_id for image_id, file in samples.items()}
    for path in sorted(folder.iterdir()):
        if path.name.startswith(".") or path.suffix != ".npy":
            continue
        if path.name not in files:
            raise UserError(f"{path} is not the map of a known image; files are named as in samples.csv")
        yield files[path.name], _checked(_array(path, size), size, str(path))


def _array(path: Path, size: tuple[int, int]) -> np.ndarray:
    """The header says what will be read, and the size of the file must agree, before anything is read."""
    if path.is_symlink() or not path.is_file():
        raise UserError(f"{path} is not a regular file")
    try:
        with path.open("rb") as file:
            version = np.lib.format.read_magic(file)
            read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            shape, _, dtype = read(file)
            begin = file.tell()
    except (OSError, ValueError, EOFError) as error:
        raise UserError(f"{path} is not a .npy file ({one_line(error)}); write it with numpy.save") from error
    if dtype.kind not in "fiub":
        raise UserError(f"{path} holds {dtype}, not numbers; write float32")
    if tuple(shape) != size:
        raise _wrong_size(path, tuple(shape), size)
    if path.stat().st_size != begin + dtype.itemsize * size[0] * size[1]:
        raise UserError(f"{path} has {path.stat().st_size:,} bytes, which is not what its header says; write it again")
    return np.load(path, allow_pickle=False)


def _from_parquet(path: Path, samples: dict[str, str], size: tuple[int, int]) -> Iterator[tuple[str, np.ndarray]]:
    try:
        file = pq.ParquetFile(path)
        _check_parquet(path, file, len(samples), size)
        for batch in file.iter_batches(batch_size=BATCH, columns=["image_id", "map"]):
            for image_id, row in zip(batch["image_id"].to_pylist(), batch["map"], strict=True):
                if image_id not in samples:
                    raise UserError(f"{path}: image {str(image_id)[:100]!r} is not one of samples.csv")
                where = f"{path}, image {image_id}"
                yield image_id, _checked(_row(row, size, where), size, where)
    except (pa.ArrowException, OSError) as error:
        raise UserError(f"{path} is not a Parquet file of maps ({one_line(error)})") from error


def _check_parquet(path: Path, file: pq.ParquetFile, most: int, size: tuple[int, int]) -> None:
    schema = file.schema_arrow
    for column in ("image_id", "map"):
        if column not in schema.names:
            raise UserError(f"{path} has no column {column}; it needs image_id and map")
    kind = schema.field("map").type
    while pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        kind = kind.value_type
    if not (pa.types.is_floating(kind) or pa.types.is_integer(kind) or pa.types.is_boolean(kind)):
        raise UserError(f"{path}: map holds {kind}, not lists of numbers")
    if not pa.types.is_string(schema.field("image_id").type):
        raise UserError(f"{path}: image_id must be string, not {schema.field('image_id').type}")
    if file.metadata.num_rows > most:
        raise UserError(f"{path} has {file.metadata.num_rows:,} rows for {most:,} images")
    for group in range(file.metadata.num_row_groups):
        rows = file.metadata.row_group(group)
        for column in map(rows.column, range(rows.num_columns)):
            inside = column.path_in_schema.partition(".")[0] == "map"
            if inside and column.num_values > rows.num_rows * size[0] * size[1]:
                raise UserError(f"{path} holds more numbers than maps of {size[0]} x {size[1]} have")


def _row(row: pa.ListScalar, size: tuple[int, int], where: str) -> np.ndarray:
    """A row of lists without going through Python numbers."""
    if not row.is_valid:
        raise UserError(f"{where}: the map is null")
    values, shape = row.values, [len(row.values)]
    while not (pa.types.is_primitive(values.type) or pa.types.is_boolean(values.type)):
        lengths = pc.unique(pc.list_value_length(values)).to_pylist()
        if len(lengths) != 1 or lengths[0] is None:
            raise UserError(f"{where}: the rows of the map differ in length")
        shape.append(lengths[0])
        values = values.flatten()
    if values.null_count:
        raise UserError(f"{where}: the map holds null")
    if shape not in ([size[0] * size[1]], list(size)):
        raise _wrong_size(where, tuple(shape), size)
    return values.to_numpy(zero_copy_only=False).reshape(size)


def _checked(values: np.ndarray, size: tuple[int, int], where: str) -> np.ndarray:
    with np.errstate(over="ignore"):
        values = np.ascontiguousarray(values.reshape(size), dtype=np.float32)
    if not np.isfinite(values).all():
        raise UserError(f"{where}: the map holds NaN or infinite values (as float32); every value must be finite")
    return values


def _wrong_size(where: object, shape: tuple, size: tuple[int, int]) -> UserError:
    found = " x ".join(map(str, shape)) or "one number"
    return UserError(f"{where} is {found}, but the prepared frame is {size[0]} x {size[1]}; maps have its size")


def _content(image: torch.Tensor, weights: torch.Tensor) -> bytes:
    parts = (tensor.detach().cpu().contiguous().numpy().tobytes() for tensor in (image, weights))
    return blake2b(b"".join(parts), digest_size=8).digest()
