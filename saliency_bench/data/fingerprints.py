"""Content hashes of a dataset: the same on every machine and in every folder."""

from hashlib import blake2b
from pathlib import Path

from datasets import ClassLabel, Dataset, Image

from saliency_bench.errors import UserError
from saliency_bench.utils.pictures import UnreadableError, decode

PNG = b"\x89PNG\r\n\x1a\n"
READ = 100  # rows at once


def fingerprint(dataset: Dataset) -> str:
    """A hash of the content of all rows in order: image_id, name of the label, encoded bytes of image and mask.

    It depends on nothing else: not on paths, cache, machine or other columns; a missing column counts as null.
    `build_report.json` holds the same hash of each split. Raises: UserError without a column "image".
    """
    if not isinstance(dataset.features.get("image"), Image):
        raise UserError('the dataset has no column "image" of images')
    kind = dataset.features.get("label")
    wanted = [column for column in ("image_id", "label", "image", "mask") if column in dataset.features]
    plain = dataset.with_format(None).select_columns(wanted)
    for column in {"image", "mask"} & set(wanted):
        plain = plain.cast_column(column, Image(decode=False))
    content = Fingerprint()
    for batch in plain.iter(READ):
        for index in range(len(batch["image"])):
            row = {column: batch[column][index] for column in wanted}
            label = row.get("label")
            named = kind.int2str(label) if isinstance(kind, ClassLabel) and label is not None else label
            content.add(row.get("image_id"), named, _bytes(row["image"]), _bytes(row.get("mask")))
    return content.text()


class Fingerprint:
    """A running hash over rows in their order: image id, label name, image and mask.

    A PNG counts by its pixels, because its bytes depend on the version of the compressor; anything else by its bytes.
    """

    def __init__(self) -> None:
        self.hash = blake2b(digest_size=16)

    def add(self, image_id: object, label: object, image: bytes | None, mask: bytes | None) -> None:
        """Each part is preceded by its length (null: -1), so that different rows never give the same bytes."""
        for part in (_text(image_id), _text(label), picture_content(image), picture_content(mask)):
            self.hash.update((-1 if part is None else len(part)).to_bytes(8, "big", signed=True))
            self.hash.update(part or b"")

    def text(self) -> str:
        return self.hash.hexdigest()


def picture_content(data: bytes | None) -> bytes | None:
    """The hashed content of an encoded picture: mode, size and pixels of a PNG, all bytes of anything else."""
    if data is None or not data.startswith(PNG):
        return data
    try:
        image = decode(data)
    except UnreadableError:
        return data
    image = image.convert("RGBA") if image.mode == "P" else image  # the palette counts
    return f"{image.mode} {image.size}".encode() + image.tobytes()


def _text(value: object) -> bytes | None:
    return None if value is None else str(value).encode()


def _bytes(stored: dict | None) -> bytes | None:
    if stored is None:
        return None
    return Path(stored["path"]).read_bytes() if stored["bytes"] is None else stored["bytes"]
