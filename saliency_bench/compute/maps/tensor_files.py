"""Read the tensor in a `.pt` file without torch. Everything that is unpacked is checked first.

A `.pt` file is a zip archive: `NAME/data.pkl` describes the tensor, and `NAME/data/KEY` contains its values. The
description is a pickle. This reader accepts only a few names of functions and types in the pickle, so it runs no code.
Meta, sparse and quantised tensors, subclasses of tensors and all other objects are rejected.
"""

# `torch.load(weights_only=True, mmap=True)` after the same checks is not enough: its pickle may build a bytearray, so
# that a file of 500 bytes takes 2 GB and 14 s. It also maps compressed storages unchanged, which results in wrong
# numbers.

import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from io import BytesIO
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from saliency_bench.errors import one_line
from saliency_bench.utils.files import check_members, check_readable

LARGEST_PICKLE = 100_000  # bytes; the pickle of one tensor has a few hundred
MOST_AXES = 8
BFLOAT16 = "bfloat16"  # NumPy has no such type
# {torch name: numpy name} of storages and types
STORAGES = {"DoubleStorage": "<f8", "FloatStorage": "<f4", "HalfStorage": "<f2", "BFloat16Storage": BFLOAT16,
            "LongStorage": "<i8", "IntStorage": "<i4", "ShortStorage": "<i2", "CharStorage": "i1", "ByteStorage": "u1",
            "BoolStorage": "?", "UntypedStorage": "bytes"}  # fmt: skip
TYPES = {"uint16": "<u2", "uint32": "<u4", "uint64": "<u8"}  # types without a storage type


class _Tensor(NamedTuple):
    """Layout of a tensor: the type and key of its storage, and the part of the storage that it uses."""

    kind: str
    key: str
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def load_tensor(path: Path, most: int) -> np.ndarray:
    """Read the tensor in a `.pt` file as an array.

    Args:
        path: The file.
        most: Limit on the unpacked size of the content, in bytes.

    Raises:
        ValueError: The file does not contain exactly one dense tensor of numbers, or unpacks to more than `most` bytes.
            Damaged files may also raise OSError, EOFError, KeyError, zlib.error or BadZipFile.
    """
    check_readable(path, most)
    if not zipfile.is_zipfile(path):
        raise ValueError("it is not a zip archive, the format of torch.save since version 1.6")
    with zipfile.ZipFile(path) as packed:
        check_members(packed, most)
        names = [name for name in packed.namelist() if name.count("/") == 1 and name.endswith("/data.pkl")]
        if len(names) != 1:
            raise ValueError("it does not have exactly one data.pkl")
        folder = names[0].removesuffix("data.pkl")
        order = f"{folder}byteorder"
        if order in packed.namelist() and packed.read(order) != b"little":
            raise ValueError("its numbers are not little-endian")
        if packed.getinfo(names[0]).file_size > LARGEST_PICKLE:
            raise ValueError(f"its description has more than {LARGEST_PICKLE:,} bytes")
        tensor = _describe(packed.read(names[0]))
        return _strided(tensor, packed.read(f"{folder}data/{tensor.key}"))


def _describe(content: bytes) -> _Tensor:
    """Return the tensor that a pickle describes, or raise ValueError if it describes anything else."""
    try:
        tensor = _Unpickler(BytesIO(content)).load()
    except ValueError:
        raise
    except Exception as error:  # a damaged pickle may raise any exception
        raise ValueError(f"its description cannot be read: {one_line(error, 100)}") from error
    if not isinstance(tensor, _Tensor):
        raise ValueError(f"it contains a {type(tensor).__name__}, not one tensor")
    return tensor


def _strided(tensor: _Tensor, storage: bytes) -> np.ndarray:
    """Return a tensor as a view of its storage, so an expanded tensor needs no additional memory."""
    dtype = np.dtype("<u2" if tensor.kind == BFLOAT16 else tensor.kind)
    last = tensor.offset + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.strides, strict=True))
    if prod(tensor.shape) and (last + 1) * dtype.itemsize > len(storage):
        raise ValueError("it is smaller than its description states")
    numbers = np.frombuffer(storage, dtype, len(storage) // dtype.itemsize)
    if tensor.kind == BFLOAT16:  # the upper half of a float32
        numbers = (numbers.astype("<u4") << 16).view("<f4")
    if not prod(tensor.shape):
        return np.zeros(tensor.shape, numbers.dtype)
    strides = [stride * numbers.itemsize for stride in tensor.strides]
    return np.lib.stride_tricks.as_strided(numbers[tensor.offset :], tensor.shape, strides, writeable=False)


def _tensor_of(storage: Any, offset: Any, shape: Any, strides: Any, *others: Any, kind: str = "") -> _Tensor:
    """Return the tensor that the arguments of torch's rebuild function describe."""
    if len(others) > 2 and others[-1]:  # a negated or conjugate view
        raise ValueError(
            f"it contains a tensor whose negation or conjugation is not yet applied ({one_line(others[-1], 60)}); save "
            "maps.resolve_neg().clone()"
        )
    named, key = storage if isinstance(storage, tuple) and len(storage) == 2 else ("", "")
    numbers = shape + strides if isinstance(shape, tuple) and isinstance(strides, tuple) else (None,)
    whole = all(type(number) is int and 0 <= number < 2**48 for number in (offset, *numbers))
    if not whole or len(shape) != len(strides) or len(shape) > MOST_AXES or not isinstance(key, str):
        raise ValueError("its header is damaged")
    kind = kind or named
    if kind not in (*STORAGES.values(), *TYPES.values()) or kind == "bytes":
        raise ValueError(f"it contains a tensor of {one_line(kind, 40) or 'no type'}, not of numbers")
    return _Tensor(kind, key, offset, shape, strides)


def _of_type(storage: Any, offset: Any, shape: Any, strides: Any, grad: Any, hooks: Any, kind: Any, *rest: Any) -> Any:
    """Like `_tensor_of`, but for the rebuild function that torch uses for types without a storage class."""
    return _tensor_of(storage, offset, shape, strides, grad, hooks, *rest, kind=str(kind))


def _parameter(tensor: Any, *_: Any) -> Any:
    return tensor


FUNCTIONS: dict[tuple[str, str], Callable] = {
    ("torch._utils", "_rebuild_tensor_v2"): _tensor_of,
    ("torch._utils", "_rebuild_tensor_v3"): _of_type,
    ("torch._utils", "_rebuild_parameter"): _parameter,
    ("collections", "OrderedDict"): OrderedDict,
}


# This is the pure-Python unpickler. The C unpickler allocates memory for memo indices, which a few bytes can make huge.
class _Unpickler(pickle._Unpickler):
    """Unpickler for the description of a tensor."""

    def find_class(self, module: str, name: str) -> Any:
        """Return the stand-in for a name, or raise ValueError if no tensor of numbers needs this name."""
        if module in ("torch", "torch.storage") and (kind := (STORAGES | TYPES).get(name)):
            return kind
        if (module, name) not in FUNCTIONS:
            raise ValueError(f"it contains {one_line(f'{module}.{name}', 80)}, not one dense tensor of numbers")
        return FUNCTIONS[module, name]

    def persistent_load(self, pid: Any) -> tuple[Any, Any]:
        """Return (type, key) of a storage."""
        if not isinstance(pid, tuple) or len(pid) != 5 or pid[0] != "storage":
            raise ValueError("its header is damaged")
        return pid[1], pid[2]
