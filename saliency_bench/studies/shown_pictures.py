"""Images that the page of a study displays: upright 8-bit RGB files in a cache.

An upright RGB JPEG or PNG file is displayed unchanged. All other files, such as files that are rotated by EXIF, grey,
transparent or CMYK, are converted. Images of up to `LOSSLESS` pixels are saved as PNG. Larger images are saved as JPEG
with quality 95 and without colour subsampling, because a phone photo takes up 20 MB as PNG. Images with 16 or 32 bits,
such as X-rays, are scaled from the 1st to the 99th percentile of their values. Masks that people draw always have the
same size as the image.
"""

import json
from dataclasses import asdict, dataclass
from hashlib import sha256
from io import BytesIO
from pathlib import Path

from PIL import Image

from saliency_bench.data.annotations import checksum
from saliency_bench.utils.files import write_with
from saliency_bench.utils.pictures import (
    FORMATS,
    SUFFIXES,
    UnreadableError,
    decode,
    is_plain,
    orientation_of,
    rgb,
)
from saliency_bench.utils.processors import cores
from saliency_bench.utils.storage import cache_folder

VERSION = 1  # version of these conversions
LOSSLESS = 2**20  # maximum number of pixels for PNG
QUALITY = 95
MEDIA = {".jpg": "image/jpeg", ".png": "image/png"}


@dataclass(frozen=True)
class Shown:
    """An image in the cache.

    Attributes:
        name: Name of the file, based on the hash of the stored image. The page also uses this name as the ETag.
        height: Height of the upright image in pixels.
        width: Width of the upright image in pixels.
        sha256: Checksum of the stored image, as in the `image_sha256` column of published annotations.
    """

    name: str
    height: int
    width: int
    sha256: str

    @property
    def path(self) -> Path:
        """Path of the file."""
        return _folder(self.name) / self.name

    @property
    def media(self) -> str:
        """Media type of the file."""
        return MEDIA[self.path.suffix]


def shown(data: bytes) -> Shown:
    """Return the cached image for these bytes. If the image is not in the cache yet, create it.

    Raises:
        UnreadableError: The image cannot be read.
    """
    key = f"{sha256(data).hexdigest()}-{VERSION}"
    about = _folder(key) / f"{key}.json"
    if about.is_file():
        made = Shown(**json.loads(about.read_text("utf-8")))
        if made.path.is_file():
            return made
    content, suffix, (width, height) = _made(data)
    made = Shown(key + suffix, height, width, checksum({"bytes": data}) or "")
    about.parent.mkdir(parents=True, exist_ok=True)
    write_with(made.path, lambda partial: partial.write_bytes(content))
    write_with(
        about, lambda partial: partial.write_text(json.dumps(asdict(made)), "utf-8")
    )  # written last, so it marks a complete file
    return made


def _folder(name: str) -> Path:
    return cache_folder() / "studies" / name[:2]


def _made(data: bytes) -> tuple[bytes, str, tuple[int, int]]:
    """Return (image encoded for display, suffix, (width, height))."""
    image = decode(data, deep=True)
    if orientation_of(image) == 1 and is_plain(image):
        return data, SUFFIXES[image.format or ""], image.size
    image = rgb(image)
    buffer = BytesIO()
    if image.width * image.height <= LOSSLESS:
        image.save(buffer, "png")
        return buffer.getvalue(), ".png", image.size
    image.save(buffer, "jpeg", quality=QUALITY, subsampling=0)
    return buffer.getvalue(), ".jpg", image.size


def size_of(data: bytes) -> tuple[int, int]:
    """Read (height, width) of the upright image from the header of the file.

    Raises:
        UnreadableError: The file is not an image.
    """
    try:
        with Image.open(BytesIO(data), formats=FORMATS) as image:
            width, height = image.size
            turned = (orientation_of(image) or 1) >= 5  # rows and columns are swapped
    except Exception:
        raise UnreadableError("not an image") from None
    return (width, height) if turned else (height, width)


def threads() -> int:
    """Return the number of images to create in parallel.

    It is at most 4, because an image of 12 megapixels needs about 100 MB.
    """
    return min(4, cores())
