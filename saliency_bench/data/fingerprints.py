"""Hash the content of a dataset. The hash does not depend on the machine or the folder."""

from collections.abc import Iterable
from hashlib import blake2b
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from datasets import Array2D, Array3D, ClassLabel, Dataset, Image, LargeList, List
from datasets.table import ConcatenationTable, MemoryMappedTable

from saliency_bench.errors import UserError, one_line
from saliency_bench.utils.hashing import remembered
from saliency_bench.utils.pictures import UnreadableError, decode

PNG = b"\x89PNG\r\n\x1a\n"
READ = 100  # rows per read
FORMAT = 2  # version of the cache; a new version recomputes all fingerprints


def fingerprint(dataset: Dataset) -> str:
    """Return a hash of the content of all rows, in order.

    The hash covers the image id, the name of the label, and the encoded bytes of the image and the mask. It does not
    depend on paths, the cache, the machine or other columns. A missing column counts as null. The hash is cached until
    the files that contain the rows change. `build_report.json` contains the same hash for each split.

    Raises:
        UserError: There is no "image" column.
    """
    return content_of(dataset)[0]


def check_images(dataset: Dataset, name: str) -> None:
    """Raise UserError unless the "image" column contains images. `name` is the dataset's name in the message."""
    kind = dataset.features.get("image")
    if isinstance(kind, List | LargeList | Array2D | Array3D):
        raise UserError(
            f'the column "image" of {name} contains arrays; convert them to images, for example with '
            "dataset.map(lambda row: {'image': PIL.Image.fromarray(numpy.asarray(row['image'], 'uint8'))})"
            ".cast_column('image', datasets.Image())"
        )
    if not isinstance(kind, Image):
        raise UserError(
            f'{name} has no column "image" with images, only the columns {", ".join(dataset.features)}; rename the '
            f'column with the images to "image"'
        )


def content_of(dataset: Dataset) -> tuple[str, list[str]]:
    """Return the fingerprint of a dataset and the `picture_digest` of each row.

    Raises:
        UserError: There is no "image" column.
    """
    check_images(dataset, "the dataset")
    kind = dataset.features.get("label")
    wanted = [column for column in ("image_id", "label", "image", "mask") if column in dataset.features]
    plain = dataset.with_format(None).select_columns(wanted)
    for column in sorted(
        {"image", "mask"} & set(wanted)
    ):  # `datasets` includes the order of these calls in its cache key
        plain = plain.cast_column(column, Image(decode=False))
    files = _files(plain)
    if files is None:
        return _parted(_of_rows(plain, kind))
    content = [
        "fingerprint",
        FORMAT,
        plain._fingerprint,
        str(dataset.features),
        len(plain),
        [str(path) for path in files],
    ]
    return _parted(remembered(content, files, lambda: _of_rows(plain, kind)))


def column_of(dataset: Dataset, name: str) -> tuple[str, list[str]]:
    """Return the hash of an additional column, and the hashes of its images if it contains images.

    Images are hashed as in `fingerprint`, classes by name, and other values as text.
    """
    kind = dataset.features[name]
    column = dataset.with_format(None).select_columns([name])
    if not isinstance(kind, Image):
        named = isinstance(kind, ClassLabel)
        texts = (class_name(kind, value, "") if named else value for value in column[name])
        return _hash_of([_text(text) for text in texts]), []
    column = column.cast_column(name, Image(decode=False))
    files = _files(column)
    if files is None:
        return _parted(_of_pictures(column, name))
    content = ["column", FORMAT, column._fingerprint, name, len(column), [str(path) for path in files]]
    return _parted(remembered(content, files, lambda: _of_pictures(column, name)))


def _of_pictures(column: Dataset, name: str) -> str:
    """Return one string: the hash of a column of images, then the digest of each image, separated by spaces."""
    contents, digests = blake2b(digest_size=16), []
    for batch in column.iter(READ):
        for stored in batch[name]:
            picture = stored_bytes(stored)
            _add(contents, picture_content(picture))
            digests.append(picture_digest(picture))
    return " ".join([contents.hexdigest(), *digests])


def _hash_of(parts: Iterable[bytes | None], size: int = 16) -> str:
    """Hash a sequence of values, which may include None, and return `size` bytes."""
    digest = blake2b(digest_size=size)
    for part in parts:
        _add(digest, part)
    return digest.hexdigest()


def _parted(text: str) -> tuple[str, list[str]]:
    """Split a string into its first word and the list of other words."""
    content, *digests = text.split(" ")
    return content, digests


def _of_rows(rows: Dataset, kind: object) -> str:
    """Return one string: the fingerprint of all rows, then the digest of each row, separated by spaces."""
    content = Fingerprint()
    digests = []
    for batch in rows.iter(READ):
        for index in range(len(batch["image"])):
            row = {column: batch[column][index] for column in rows.column_names}
            label = row.get("label")
            named = class_name(kind, label, row.get("image_id")) if isinstance(kind, ClassLabel) else label
            image, mask = stored_bytes(row["image"]), stored_bytes(row.get("mask"))
            content.add(row.get("image_id"), named, image, mask)
            digests.append(picture_digest(image, mask))
    return " ".join([content.text(), *digests])


def picture_digest(*pictures: bytes | None) -> str:
    """Return a hash of a row's encoded images as 16 hexadecimal digits. It is used to detect changes."""
    return _hash_of(pictures, 8)


def _files(rows: Dataset) -> list[Path] | None:
    """Return all files that contain rows and images. Return None for rows in memory and for selections of rows."""
    table = rows.data
    blocks = [block for line in table.blocks for block in line] if isinstance(table, ConcatenationTable) else [table]
    if rows._indices is not None or not all(isinstance(block, MemoryMappedTable) for block in blocks):
        return None
    columns = [name for name, kind in rows.features.items() if isinstance(kind, Image)]
    beside = {path for column in columns for path in _beside(table.column(column))}
    files = [Path(path) for path in (*(block.path for block in blocks), *sorted(beside))]
    return files if all(path.is_file() for path in files) else None


def _beside(pictures: pa.ChunkedArray) -> list[str]:
    data, paths = (pc.struct_field(pictures, name) for name in ("bytes", "path"))
    return paths.filter(pc.is_null(data)).drop_null().to_pylist()


def class_name(kind: ClassLabel, label: int | None, image_id: object) -> str | None:
    """Return the name of a label, or None for a sample without a label (null, or a negative number).

    Raises:
        UserError: The label is not a class.
    """
    try:
        return None if label is None or label < 0 else kind.int2str(label)
    except ValueError as error:
        raise UserError(
            f"label {label} of image {one_line(image_id, 100)} is not one of the dataset's {kind.num_classes} classes; "
            f"correct the column (null or -1 means no label)"
        ) from error


class Fingerprint:
    """A hash that is updated row by row with the image id, label name, image and mask.

    For a PNG, the pixels are hashed, because the bytes of the file depend on the version of the compressor. For other
    formats, the bytes of the file are hashed.
    """

    def __init__(self) -> None:
        self.hash = blake2b(digest_size=16)

    def add(self, image_id: object, label: object, image: bytes | None, mask: bytes | None) -> None:
        """Add a row to the hash.

        Each value is preceded by its length (-1 for null), so that different rows never produce the same bytes.
        """
        for part in (_text(image_id), _text(label), picture_content(image), picture_content(mask)):
            _add(self.hash, part)

    def text(self) -> str:
        """Return the hash."""
        return self.hash.hexdigest()


def picture_content(data: bytes | None) -> bytes | None:
    """Return the bytes to hash for an encoded image.

    For a PNG, these are the mode, size and pixels. For any other format, these are all bytes.
    """
    if data is None or not data.startswith(PNG):
        return data
    try:
        image = decode(data)
    except UnreadableError:
        return data
    image = image.convert("RGBA") if image.mode == "P" else image  # the hash must include the colours of the palette
    return f"{image.mode} {image.size}".encode() + image.tobytes()


def _add(digest: blake2b, part: bytes | None) -> None:
    digest.update((-1 if part is None else len(part)).to_bytes(8, "big", signed=True))
    digest.update(part or b"")


def _text(value: object) -> bytes | None:
    return None if value is None else str(value).encode()


def stored_bytes(stored: dict | None) -> bytes | None:
    """Return the encoded image in an undecoded cell. It is in the cell itself or in a file that the cell refers to."""
    if stored is None:
        return None
    return Path(stored["path"]).read_bytes() if stored["bytes"] is None else stored["bytes"]
