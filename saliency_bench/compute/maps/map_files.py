"""Read saliency maps from files and arrays. Check that each map has the right size, finite values and a known image.

A folder contains one file per image, `IMAGE-ID.npy`, `.npz` (one array), `.pt` (one tensor) or `.png` (grey), or the
Parquet files of maps that a run has stored (`stored_maps`). A single file is either a Parquet file with the columns
`image_id` and `map` (H lists of W numbers, or H * W numbers row by row), or a `.npy`, `.npz` or `.pt` file (N, H, W) in
the order of the dataset. Reading a file never executes code, and only files that are named after a known image are
opened.
"""

import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from hashlib import blake2b
from io import BytesIO
from itertools import chain
from math import prod
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from PIL import Image

from saliency_bench.compute.maps.tensor_files import load_tensor
from saliency_bench.errors import UserError, one_line
from saliency_bench.maps import read_array
from saliency_bench.spec import MAP_FORMS
from saliency_bench.utils.files import check_regular, load_arrays, read_bytes, read_header
from saliency_bench.utils.parquet_pages import check_pages, check_texts

# Exceptions of zipfile and its readers for a damaged, encrypted or unusual archive.
DAMAGED = (OSError, EOFError, KeyError, ValueError, RuntimeError, zlib.error, BadZipFile)
BATCH = 16  # rows of Parquet in memory at once
LARGEST_TENSOR = 2**28  # bytes of a .pt file; a view of a larger tensor is saved with the whole tensor
GREY = ("1", "L", "I", "I;16", "I;16B", "I;16L")
Size = tuple[int, int]
Found = Iterator[tuple[str, np.ndarray]]


def in_memory(name: str, given: object) -> np.ndarray | dict[str, np.ndarray]:
    """Convert maps in memory to an array (N, H, W) or {image id: array (H, W)}.

    Raises:
        UserError: The maps have neither form.
    """
    try:
        if isinstance(given, Mapping):
            return {str(image_id): read_array("maps", values, "(H, W)") for image_id, values in given.items()}
        array = read_array("maps", given, "(N, H, W)")
    except ValueError as error:
        raise UserError(f"maps {name}: {error}") from error
    if array.ndim != 3 or given is None:
        raise UserError(
            f"maps {name} must be a folder, a file, {{image id: map}} or an array (N, H, W); got "
            f"{f'shape {array.shape}' if array.ndim else type(given).__name__}"
        )
    return array


def digest_of(maps: np.ndarray | Mapping[str, np.ndarray]) -> str:
    """Return a hash of the values, and of the image ids if there are any."""
    digest = blake2b(digest_size=8)
    named = [("", maps)] if isinstance(maps, np.ndarray) else sorted(maps.items())
    for image_id, values in named:
        digest.update(
            repr((image_id, values.shape, values.dtype.str)).encode() + np.ascontiguousarray(values).tobytes()
        )
    return digest.hexdigest()


def read_maps_of(
    source: Path | np.ndarray | Mapping[str, np.ndarray], name: str, files: Mapping[str, str], size: Size
) -> Found:
    """Yield (image id, float32 (H, W)) for each map of the method `name`, in any order.

    Args:
        source: The maps, or a file or folder with maps.
        name: Name of the method, for messages.
        files: {image id: name of its .npy file, "" for none}, in the order of the dataset.
        size: (H, W) of the images after the classifier's preprocessing.

    Raises:
        UserError: A map has the wrong size or values that are not finite, or its image is unknown. The message names
            the file or image.
    """
    if isinstance(source, Mapping):
        return _from_mapping(source, name, files, size)
    if isinstance(source, np.ndarray):
        return _in_order(source, f"maps {name}", files, size)
    if not source.exists():
        raise UserError(f"there are no maps at {source}; use {MAP_FORMS}")
    if source.is_dir():
        kept = sorted(source.glob("*.parquet"))
        return (
            chain.from_iterable(_from_parquet(path, files, size) for path in kept)
            if kept
            else _from_folder(source, files, size)
        )
    try:
        check_regular(source)
    except (OSError, ValueError) as error:
        raise UserError(f"{source} is not a regular file or folder of maps") from error
    if source.suffix in READERS:
        return _in_order(READERS[source.suffix](source, (len(files), *size), size), str(source), files, size)
    return _from_parquet(source, files, size)


def _from_mapping(maps: Mapping[str, np.ndarray], name: str, files: Collection[str], size: Size) -> Found:
    for image_id, values in maps.items():
        where = f"maps {name}, image {image_id}"
        if image_id not in files:
            raise UserError(f"{where}: the dataset has no image with this id")
        if values.shape != size:
            raise _wrong_size(where, values.shape, size)
        yield image_id, _checked(values, size, where)


def _in_order(maps: np.ndarray, where: str, files: Mapping[str, str], size: Size) -> Found:
    """Yield one map per sample, in the order of the dataset."""
    if len(maps) != len(files):
        raise UserError(
            f"{where}: there are {len(maps):,} maps for {len(files):,} samples; provide one map for each sample, in "
            "the order of the split, or name the maps by image id"
        )
    if maps.shape[1:] != size:
        raise _wrong_size(where, maps.shape[1:], size)
    for image_id, values in zip(files, maps, strict=True):
        yield image_id, _checked(values, size, f"{where}, image {image_id}")


def _from_folder(folder: Path, files: Mapping[str, str], size: Size) -> Found:
    known = {image_id: image_id for image_id in files}
    known |= {file.removesuffix(".npy"): image_id for image_id, file in files.items() if file}
    readers = READERS | {".png": _picture}
    for path in sorted(folder.rglob("*")):
        inside = path.relative_to(folder)
        if any(part.startswith(".") for part in inside.parts) or path.suffix not in readers:
            continue
        name = inside.with_suffix("").as_posix()  # an id may have a slash
        if name not in known:
            expected = next(filter(None, files.values()), "IMAGE-ID.npy")
            raise UserError(
                f"the name of {path} is not the id of a known image; name files after image ids, such as {expected}"
            )
        if path.is_symlink() or not path.is_file():
            raise UserError(f"{path} is not a regular file")
        yield known[name], _checked(readers[path.suffix](path, size, size), size, str(path))


def _stored(path: Path, shape: tuple[int, ...], size: Size) -> np.ndarray:
    """Return the array in a .npy file.

    The file size is checked against the header before the data is read.
    """
    try:
        with path.open("rb") as file:
            stored_shape, dtype = read_header(file)
            begin = file.tell()
    except (OSError, ValueError, EOFError) as error:
        raise UserError(f"{path} is not a .npy file ({one_line(error)}); write it with numpy.save") from error
    if dtype.kind not in "fiub":
        raise UserError(f"{path} contains {dtype}, not numbers; write float32")
    if len(shape) == 3 and len(stored_shape) == 2:
        raise UserError(
            f"{path} contains one map, {stored_shape[0]} x {stored_shape[1]}; a .npy file must contain the maps of "
            "all samples, (N, H, W), in the order of the dataset; in a folder, each IMAGE-ID.npy file contains one "
            "map"
        )
    if len(stored_shape) != len(shape) or stored_shape[-2:] != size:
        raise _wrong_size(path, tuple(stored_shape), size)
    if path.stat().st_size != begin + dtype.itemsize * int(np.prod(stored_shape, dtype=object)):
        raise UserError(f"the size of {path}, {path.stat().st_size:,} bytes, does not match its header; write it again")
    return np.load(path, allow_pickle=False, mmap_mode="r" if len(stored_shape) > 2 else None)


def _packed(path: Path, shape: tuple[int, ...], size: Size) -> np.ndarray:
    try:
        arrays = list(load_arrays(path, 32 * prod(shape) + 10_000).values())
    except DAMAGED as error:
        raise UserError(
            f"{path} is not an .npz file with exactly one array ({one_line(error)}); write it with numpy.savez"
        ) from error
    if len(arrays) != 1:
        raise UserError(f"{path} contains {len(arrays)} arrays; save one array per file")
    return _of_shape(path, arrays[0], shape, size)


def _tensor(path: Path, shape: tuple[int, ...], size: Size) -> np.ndarray:
    try:
        tensor = load_tensor(path, max(LARGEST_TENSOR, 32 * prod(shape)))
    except DAMAGED as error:
        raise UserError(
            f"{path} is not a .pt file with exactly one tensor ({one_line(error, 150)}); save only the maps: "
            "torch.save(maps.detach().cpu().clone(), file)"
        ) from error
    return _of_shape(path, tensor, shape, size)


READERS = {".npy": _stored, ".npz": _packed, ".pt": _tensor}  # {suffix: (path, shape, size of a map) -> array}


def _of_shape(path: Path, array: np.ndarray, shape: tuple[int, ...], size: Size) -> np.ndarray:
    """Check that an array from a file contains maps of this size, and return it. The number of maps is not checked."""
    if array.dtype.kind not in "fiub":
        raise UserError(f"{path} contains {array.dtype}, not numbers; write float32")
    if array.ndim != len(shape) or array.shape[-2:] != size:
        raise _wrong_size(path, array.shape, size)
    return array


def _picture(path: Path, shape: tuple[int, ...], size: Size) -> np.ndarray:
    """Check the size of a grey PNG with 1, 8 or 16 bits, and decode it."""
    try:
        with Image.open(BytesIO(read_bytes(path)), formats=["PNG"]) as image:
            if image.mode not in GREY:
                raise UserError(
                    f"{path} is a picture in colour ({image.mode}); save the map itself, in grey or as .npy"
                )
            if (image.height, image.width) != size:
                raise _wrong_size(path, (image.height, image.width), size)
            return np.asarray(image)
    except UserError:
        raise
    except Exception as error:  # Pillow may raise any exception for a damaged file
        raise UserError(f"{path} is not a PNG file ({one_line(error)})") from error


def _from_parquet(path: Path, files: Mapping[str, str], size: Size) -> Found:
    try:
        file = pq.ParquetFile(path, read_dictionary=["image_id"])
        _check_parquet(path, file, len(files), size)
        names = [name for name in ("image_id", "map", "scale") if name in file.schema_arrow.names]
        for batch in file.iter_batches(batch_size=BATCH, columns=names):
            check_texts([batch["image_id"]])
            for index, image_id in enumerate(batch["image_id"].to_pylist()):
                row, where = batch["map"][index], f"{path}, image {image_id}"
                scale = batch["scale"][index].as_py() if "scale" in names else 1
                if scale is None and not row.is_valid:  # a run stores a row for each sample
                    continue
                if image_id not in files:
                    raise UserError(f"{path}: image {str(image_id)[:100]!r} is not a known image")
                values = _row(row, size, where)
                yield image_id, _checked(values if scale == 1 else _scaled(values, scale, where), size, where)
    except UserError:
        raise
    except (pa.ArrowException, OSError, ValueError) as error:
        raise UserError(f"{path} is not a Parquet file of maps ({one_line(error)})") from error


def _check_parquet(path: Path, file: pq.ParquetFile, most: int, size: Size) -> None:
    """Raise UserError for a Parquet file that contains no maps, or more maps than there are images."""
    schema = file.schema_arrow
    for column in ("image_id", "map"):
        if column not in schema.names:
            raise UserError(f"{path} has no column {column}; it needs image_id and map")
    kind = schema.field("map").type
    while pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        kind = kind.value_type
    if not (pa.types.is_floating(kind) or pa.types.is_integer(kind) or pa.types.is_boolean(kind)):
        raise UserError(f"{path}: the column map contains {kind}, not lists of numbers")
    ids = schema.field("image_id").type
    ids = ids.value_type if pa.types.is_dictionary(ids) else ids
    if not (pa.types.is_string(ids) or pa.types.is_large_string(ids)):  # pandas writes large_string
        raise UserError(f"{path}: the column image_id must have the type string, not {ids}")
    if file.metadata.num_rows > most:
        raise UserError(f"{path} has {file.metadata.num_rows:,} rows for {most:,} images; write one row per image")
    values = check_pages(path, file.metadata, ["image_id", "map", "scale"])
    if values["map"] > file.metadata.num_rows * size[0] * size[1]:
        raise UserError(f"{path} contains more numbers than maps of {size[0]} x {size[1]} can contain")


def _scaled(values: np.ndarray, scale: object, where: str) -> np.ndarray:
    if not isinstance(scale, int | float):
        raise UserError(f"{where}: scale is {scale!r}, not a number")
    return values.astype(np.float64) * scale


def _row(row: pa.ListScalar, size: Size, where: str) -> np.ndarray:
    """Convert a map from a nested Arrow list to an array. For speed, values are not converted to Python numbers."""
    if not row.is_valid:
        raise UserError(f"{where}: the map is null")
    values, shape = row.values, [len(row.values)]
    while not (pa.types.is_primitive(values.type) or pa.types.is_boolean(values.type)):
        lengths = pc.unique(pc.list_value_length(values)).to_pylist()
        if len(lengths) != 1 or lengths[0] is None:
            raise UserError(f"{where}: the rows of the map differ in length; write a rectangular map")
        shape.append(lengths[0])
        values = values.flatten()
    if values.null_count:
        raise UserError(f"{where}: the map contains null")
    if shape not in ([size[0] * size[1]], list(size)):
        raise _wrong_size(where, tuple(shape), size)
    return values.to_numpy(zero_copy_only=False).reshape(size)


def _checked(values: np.ndarray, size: Size, where: str) -> np.ndarray:
    """Return a map as float32.

    Raises:
        UserError: The map has the wrong size, or a value that is not finite.
    """
    with np.errstate(over="ignore"):
        values = np.ascontiguousarray(values.reshape(size), dtype=np.float32)
    if not np.isfinite(values).all():
        raise UserError(f"{where}: the map contains NaN or infinite values (as float32); every value must be finite")
    return values


def _wrong_size(where: object, shape: Sequence[int], size: Size) -> UserError:
    given = " x ".join(map(str, shape)) or "one number"
    return UserError(
        f"{where} is {given}, but the prepared images are {size[0]} x {size[1]}; maps must have the same size"
    )
