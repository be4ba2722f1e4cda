"""Hashes of what a dataset holds, the same on every machine and wherever the dataset lies."""

from hashlib import blake2b

from saliency_bench.utils.pictures import UnreadableError, opened

PNG = b"\x89PNG\r\n\x1a\n"


class Fingerprint:
    """A running hash over rows in their order: image id, label name, image and mask.

    Of a PNG the pixels count, because its bytes depend on the version of the compressor; of anything else the bytes.
    """

    def __init__(self) -> None:
        self.hash = blake2b(digest_size=16)

    def add(self, image_id: object, label: object, image: bytes | None, mask: bytes | None) -> None:
        """Each part is preceded by its length (null: -1), so that no two rows can run into each other."""
        for part in (_text(image_id), _text(label), picture_content(image), picture_content(mask)):
            self.hash.update((-1 if part is None else len(part)).to_bytes(8, "big", signed=True))
            self.hash.update(part or b"")

    def text(self) -> str:
        return self.hash.hexdigest()


def _text(value: object) -> bytes | None:
    return None if value is None else str(value).encode()


def picture_content(data: bytes | None) -> bytes | None:
    """What of an encoded picture is hashed: mode, size and pixels of a PNG, all bytes of anything else."""
    if data is None or not data.startswith(PNG):
        return data
    try:
        image = opened(data)
    except UnreadableError:
        return data
    image = image.convert("RGBA") if image.mode == "P" else image  # the palette counts
    return f"{image.mode} {image.size}".encode() + image.tobytes()
