"""Pictures for the page of a study: upright 8-bit RGB files in a cache, each created once.

A file that is an upright RGB JPEG or PNG is shown unchanged. Anything else (turned by EXIF, grey, alpha, palette, CMYK)
becomes a PNG up to `LOSSLESS` pixels, and a JPEG of quality 95 without colour subsampling above: a phone's photograph
as PNG has 20 MB. Pictures of 16 or 32 bits, such as X-rays, are shown in a window from the 1st to the 99th percentile
of their values. Masks that people draw have the size of the picture, whatever its file.
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
LOSSLESS = 2**20  # pixels
QUALITY = 95
MEDIA = {".jpg": "image/jpeg", ".png": "image/png"}


@dataclass(frozen=True)
class Shown:
    """A picture in the cache.

    Attributes:
        name: name of its file, made from the hash of the stored picture; also the ETag of the page.
        height: height of the upright picture in pixels.
        width: width in pixels.
        sha256: checksum of the stored picture, like in the column `image_sha256` of published annotations.
    """

    name: str
    height: int
    width: int
    sha256: str

    @property
    def path(self) -> Path:
        """The file."""
        return _folder(self.name) / self.name

    @property
    def media(self) -> str:
        """Media type of the file."""
        return MEDIA[self.path.suffix]


def shown(data: bytes) -> Shown:
    """Return the cached picture for these bytes, creating it if necessary.

    Raises:
        UnreadableError: The picture cannot be read.
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
    write_with(about, lambda partial: partial.write_text(json.dumps(asdict(made)), "utf-8"))  # marks a complete file
    return made


def _folder(name: str) -> Path:
    return cache_folder() / "studies" / name[:2]


def _made(data: bytes) -> tuple[bytes, str, tuple[int, int]]:
    """Return (the encoded picture to show, its suffix, (width, height))."""
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
    """Return (height, width) of the upright picture from its header.

    Raises:
        UnreadableError: The file is not a picture.
    """
    try:
        with Image.open(BytesIO(data), formats=FORMATS) as image:
            width, height = image.size
            turned = (orientation_of(image) or 1) >= 5  # rows and columns are exchanged
    except Exception:
        raise UnreadableError("not an image") from None
    return (width, height) if turned else (height, width)


def threads() -> int:
    """Return how many pictures are created in parallel; a picture of 12 megapixels needs about 100 MB."""
    return min(4, cores())
