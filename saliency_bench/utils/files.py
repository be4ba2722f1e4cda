"""Write files atomically, and read files within size limits.

A file is written under a temporary name in the same folder and then renamed (`storage.py`). A file from an untrusted
source may be a pipe that never ends, a huge file, or a small file that expands to gigabytes.
"""

import json
import os
import zipfile
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from difflib import get_close_matches
from io import BytesIO
from math import prod
from pathlib import Path
from stat import S_ISREG
from typing import IO, TYPE_CHECKING, Any

from saliency_bench.errors import UserError, one_line
from saliency_bench.utils.storage import check_output_file, make_folder, rename, storage_error

if TYPE_CHECKING:  # NumPy is imported on use, because most commands need no arrays
    import numpy as np
    from numpy.typing import DTypeLike

LARGEST = 2**26  # maximum bytes of a text file
LARGEST_ARRAYS = 2**29  # maximum bytes of the unpacked arrays of one file
DEEPEST = 100  # maximum nesting of lists and objects in JSON


def near_folders(path: Path, wanted: Callable[[Path], bool] = Path.is_dir) -> list[str]:
    """Return up to three existing paths that resemble a mistyped path and for which `wanted` is true."""
    places = [Path(path.anchor)]
    for name in path.parts[bool(path.anchor) :]:
        places = [place / near for place in places for near in _near(name, place)]
    return [str(place) for place in places if place != path and wanted(place)][:3]


def _near(name: str, folder: Path) -> list[str]:
    """Return the subfolder with this name, or else the subfolders with similar names."""
    with suppress(OSError, ValueError):
        if (folder / name).is_dir():
            return [name]
        names = {entry.name.casefold(): entry.name for entry in os.scandir(folder) if entry.is_dir()}
        return [names[near] for near in get_close_matches(name.casefold(), names, cutoff=0.8)]
    return []


def write_with(path: Path, write: Callable[[Path], object], *, private: bool = False) -> None:
    """Call `write(temporary path)` and rename the result to `path`. The file and its folder are synced to disk.

    If an error occurs, the temporary file is removed.

    Args:
        path: Path of the file.
        write: Function that writes the content.
        private: Whether only the owner may read the file.

    Raises:
        UserError: The file cannot be written, for example because the disk is full, or `path` is not a file.
    """
    check_output_file(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        make_folder(path.parent)
        # Always create a new file, because another user may have put a link with this name into /tmp.
        temporary.unlink(missing_ok=True)
        temporary.touch(0o600 if private else 0o666, exist_ok=False)
        write(temporary)
        rename(temporary, path)
    except UserError:
        raise
    except Exception as error:
        if named := storage_error(error, path):
            raise named from error
        raise
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write text atomically, as UTF-8."""
    write_with(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def write_json(path: Path, content: object) -> None:
    """Write indented JSON in a fixed layout. Equal content produces identical files. NaN becomes null."""
    write_text(path, json.dumps(_without_nan(content), indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def _without_nan(content: object) -> object:
    """Replace NaN with None, including inside lists and dicts."""
    if isinstance(content, dict):
        return {key: _without_nan(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [_without_nan(value) for value in content]
    return None if isinstance(content, float) and content != content else content


def read_bytes(path: Path, most: int = LARGEST) -> bytes:
    """Return the whole content of a regular file.

    Raises:
        OSError: The system cannot read the file.
        ValueError: The file is a pipe or device, or has more than `most` bytes.
    """
    check_readable(path, most)
    with path.open("rb") as file:
        content = file.read(most + 1)
    if len(content) > most:  # the file has grown, or its size is unknown
        raise ValueError(f"it has more than {most:,} bytes")
    return content


def check_regular(path: Path) -> None:
    """Raise ValueError unless the path is a regular file. Opening a pipe or device might block forever."""
    if not S_ISREG(path.stat().st_mode):
        raise ValueError("it is not a regular file")


def check_readable(path: Path, most: int) -> None:
    """Raise the same errors as `read_bytes`, but do not read the file."""
    check_regular(path)
    if (size := path.stat().st_size) > most:
        raise ValueError(f"it has {size:,} bytes, but the limit is {most:,}")


def parse_json(content: bytes | str, *, unique: bool = False) -> Any:
    """Parse JSON from an untrusted source.

    Args:
        content: Content of a file.
        unique: Whether to reject duplicate names in an object, because programs differ in which value they use.

    Raises:
        ValueError: The content is not JSON, or is nested more than `DEEPEST` levels deep.
    """
    too_deep = ValueError(f"it is nested more than {DEEPEST} levels deep")
    try:
        parsed = json.loads(content, object_pairs_hook=_unique if unique else None)
    except RecursionError:
        raise too_deep from None
    level = [parsed]
    for _ in range(DEEPEST):
        level = [inner for value in level if isinstance(value, dict | list) for inner in _items(value)]
        if not level:
            return parsed
    raise too_deep


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object as a dict, or raise ValueError for a duplicate name."""
    content = dict(pairs)
    if len(content) < len(pairs):
        name, times = Counter(name for name, _ in pairs).most_common(1)[0]
        raise ValueError(f"the key {one_line(ascii(name), 50)} occurs {times} times in the same JSON object")
    return content


def _items(container: dict | list) -> Iterable:
    return container.values() if isinstance(container, dict) else container


def read_json(path: Path) -> dict:
    """Return the content of a JSON file, or raise UserError if the file cannot be read."""
    try:
        return parse_json(read_bytes(path))
    except (OSError, ValueError) as error:
        why = one_line(error)
        raise UserError(f"{path} cannot be read ({why}); restore the file, or choose a different --out") from error


def load_arrays(
    path: Path, most: int = LARGEST_ARRAYS, names: Collection[str] | None = None
) -> "dict[str, np.ndarray]":
    """Read the arrays of an .npz file after checking the sizes in its directory and headers.

    Args:
        path: Path of the file.
        most: Maximum size of all arrays together, in bytes.
        names: Names of the arrays to read, or None for all.

    Raises:
        ValueError: The arrays have more than `most` bytes. Damaged files also raise OSError, EOFError, KeyError,
            zlib.error and BadZipFile.
    """
    import numpy as np

    check_readable(path, most)
    with zipfile.ZipFile(path) as packed:
        check_members(packed, most)
        for member in packed.infolist():
            if names is None or member.filename.removesuffix(".npy") in names:
                _check_header(packed, member)
    with np.load(path, allow_pickle=False) as stored:
        return {name: stored[name] for name in (stored.files if names is None else names)}


def check_members(packed: zipfile.ZipFile, most: int) -> None:
    """Raise ValueError if an archive expands to more than `most` bytes, or has two members with the same name."""
    members = packed.infolist()
    if sum(member.file_size for member in members) > most:
        raise ValueError(f"its arrays unpack to more than {most:,} bytes")
    name, times = Counter(member.filename for member in members).most_common(1)[0] if members else ("", 0)
    if times > 1:  # programs differ in which of these members they read
        raise ValueError(f"it has {times} members named {one_line(ascii(name), 100)}")


def _check_header(packed: zipfile.ZipFile, member: zipfile.ZipInfo) -> None:
    """Raise ValueError if the header of a packed array states more bytes than the member contains."""
    with packed.open(member) as file:
        shape, dtype = read_header(file)
    if prod(shape) * dtype.itemsize > member.file_size:
        raise ValueError(f"{one_line(member.filename, 100)} is smaller than its header states")


def read_header(file: IO[bytes]) -> "tuple[tuple[int, ...], np.dtype]":
    """Read (shape, dtype) from the header of a .npy file, and leave the file position at the start of the data."""
    import numpy as np

    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = read(file)
    return shape, dtype


def new_array(path: Path, kind: "DTypeLike", shape: tuple[int, ...]) -> "np.memmap":
    """Create a .npy file and return its memory-mapped array, or raise OSError if the disk has too little space."""
    import numpy as np

    array = np.lib.format.open_memmap(path, mode="w+", dtype=kind, shape=shape)
    if hasattr(os, "posix_fallocate"):  # otherwise, writing a page on a full disk would kill the process with SIGBUS
        with path.open("r+b") as file:
            os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
    return array


def save_arrays(path: Path, **arrays: "np.ndarray") -> None:
    """Write a compressed .npz file atomically.

    Raises:
        TypeError: An array contains Python objects, which only a pickle could store.
    """
    import numpy as np

    # `allow_pickle=False` cannot be used, because numpy 2.0 treats it as the name of an array.
    if objects := [name for name, array in arrays.items() if np.asarray(array).dtype.hasobject]:
        raise TypeError(f"{path} cannot store arrays of Python objects: {', '.join(objects)}")
    buffer, named = BytesIO(), dict[str, Any](arrays)
    np.savez_compressed(buffer, **named)
    write_with(path, lambda temporary: temporary.write_bytes(buffer.getvalue()))
