"""Read untrusted images. All errors are raised as `UnreadableError`. The build log states the message as the reason.

`open_rgb` converts any image (a file, bytes, an array, a PIL image or an image of `datasets`) to 8-bit RGB:

    more than 8 bits, one channel    grey, scaled from the 1st to the 99th percentile of the image's own values
    16 bits, several channels        the upper 8 bits, as Pillow reads such a file
    alpha, a transparent colour      dropped; premultiplied colours are first divided by alpha
    palette, grey, CMYK, LAB, ...    as Pillow converts them; colour profiles (ICC) are not applied
    several frames                   the first frame of a file, the current frame of a PIL image
    EXIF orientation                 applied

Cameras may store a turned image and record its orientation in EXIF. Orientation 1 is upright, and 2 to 8 are mirrored
or turned. Other values (0, or unreadable EXIF) are treated as upright. `read` turns the image upright. `turned` and
`turned_box` turn masks and boxes that refer to the pixels as stored.
"""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError, features

from saliency_bench.errors import one_line
from saliency_bench.utils.files import read_bytes

AVIF = ("AVIF",) if "avif" in features.modules and features.check("avif") else ()  # optional in Pillow
# None of these decoders runs an external program, and all formats are recognised by their first bytes.
FORMATS = ("JPEG", "PNG", "GIF", "BMP", "WEBP", "TIFF", "PPM", "JPEG2000", "PCX", "QOI", "SGI", *AVIF)
ENDINGS = (
    ".jpg", ".jpeg", ".jpe", ".jfif", ".mpo", ".png", ".apng", ".gif", ".bmp", ".webp", ".tif", ".tiff", ".ppm", ".pgm",
    ".pbm", ".pnm", ".pfm", ".jp2", ".j2k", ".jpc", ".jpf", ".jpx", ".j2c", ".pcx", ".qoi", ".bw", ".rgb", ".rgba",
    ".sgi", *((".avif", ".avifs") if AVIF else ()),
)  # fmt: skip
SUFFIXES = {"JPEG": ".jpg", "PNG": ".png"}
ORIENTATION = 0x0112
MAX_PIXELS = 64_000_000
WINDOW = (1, 99)  # percentiles that become black and white in an image of more than 8 bits
ROWS = 256  # rows converted to float64 at a time
LARGEST = 2**29  # maximum bytes of a file, more than the largest allowed image needs without compression
FLIPS = {  # orientation: (rows reversed, columns reversed); from 5 on, rows and columns are then exchanged
    1: (False, False),
    2: (False, True),
    3: (True, True),
    4: (True, False),
    5: (False, False),
    6: (True, False),
    7: (True, True),
    8: (False, True),
}


class UnreadableError(ValueError):
    """A file is not a valid image. The message contains the reason."""


@dataclass(frozen=True)
class Picture:
    """An encoded upright RGB image.

    Attributes:
        data: Encoded bytes.
        suffix: File extension for the encoding.
        width: Width in pixels.
        height: Height in pixels.
        orientation: EXIF orientation (1 to 8) of the original file.
        is_windowed: Whether the original file has more than 8 bits per channel, so that `windowed` scaled its values.
    """

    data: bytes
    suffix: str
    width: int
    height: int
    orientation: int = 1
    is_windowed: bool = False

    @property
    def stored(self) -> tuple[int, int]:
        """Size (height, width) as stored, before the EXIF orientation is applied."""
        return (self.width, self.height) if self.orientation >= 5 else (self.height, self.width)


def read(path: Path, *, deep: bool = False) -> Picture:
    """Read an image file, and encode it in the form in which datasets store images.

    The bytes of an upright RGB JPEG or PNG are not changed. Any other image (GIF, palette, grey, CMYK, alpha, EXIF
    rotation) is converted with `rgb` and encoded as a lossless PNG.

    Args:
        path: Path of the file.
        deep: Whether to accept images with more than 8 bits, which are scaled with `windowed`.

    Raises:
        UnreadableError: The file is not a valid image.
    """
    return picture_of(file_bytes(path), deep=deep)


def picture_of(data: bytes, *, deep: bool = False) -> Picture:
    """Read an image from the bytes of a file, as `read` does."""
    image = decode(data, deep=deep)
    orientation = orientation_of(image)
    if orientation == 1 and is_plain(image):
        return Picture(data, SUFFIXES[image.format or ""], *image.size)
    upright_image = rgb(image)
    return Picture(png(np.asarray(upright_image)), ".png", *upright_image.size, orientation or 1, is_deep(image))


def turned(values: np.ndarray, orientation: int) -> np.ndarray:
    """Apply an EXIF orientation to an array (H, W, ...). The array must be aligned with the image as stored.

    For orientations 5 to 8, the shape of the result is (W, H, ...).
    """
    rows, columns = FLIPS[orientation]
    values = values[:: -1 if rows else 1, :: -1 if columns else 1]
    return np.ascontiguousarray(values.swapaxes(0, 1) if orientation >= 5 else values)


def turned_box(box: list[float], orientation: int, height: int, width: int) -> list[float]:
    """Apply the EXIF orientation to a box [xmin, ymin, xmax, ymax].

    The box and (height, width) must refer to the image as stored. Pixels are counted from 1.
    """
    left, top, right, bottom = box
    rows, columns = FLIPS[orientation]
    if columns:
        left, right = width + 1 - right, width + 1 - left
    if rows:
        top, bottom = height + 1 - bottom, height + 1 - top
    return [top, left, bottom, right] if orientation >= 5 else [left, top, right, bottom]


def upright(image: Image.Image) -> Image.Image:
    """Apply the EXIF orientation. If EXIF is damaged, return the image as stored, as image viewers do."""
    try:
        return ImageOps.exif_transpose(image)
    except Exception:  # damaged EXIF raises errors of many types
        return image


def values(path: Path) -> np.ndarray:
    """Return the pixel values (H, W) of an image with one channel, such as a trimap.

    For an image with a palette, the values are palette indices.

    Raises:
        UnreadableError: The file is not a valid image with one channel.
    """
    image = decode(file_bytes(path))
    if image.mode not in ("1", "L", "P"):
        raise UnreadableError(f"has pixels of type {image.mode}, not one 8-bit channel")
    return np.asarray(image).astype(np.uint8)


def file_bytes(path: Path) -> bytes:
    """Return the bytes of an image file.

    Raises:
        UnreadableError: The file cannot be read, is not a regular file, or has more than `LARGEST` bytes.
    """
    try:
        return read_bytes(path, LARGEST)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise UnreadableError(f"cannot be read ({why})") from None


def decode(data: bytes, *, deep: bool = False) -> Image.Image:
    """Decode an image completely, so that a truncated file is detected.

    Args:
        data: Encoded image.
        deep: Whether to accept images with more than 8 bits.

    Raises:
        UnreadableError: The image cannot be decoded.
    """
    if not data:
        raise UnreadableError("empty file")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            image = Image.open(BytesIO(data), formats=FORMATS)
            _refuse_giant(image)
            image.load()
    except UnreadableError:
        raise
    except UnidentifiedImageError:
        raise UnreadableError("not an image") from None
    except Image.DecompressionBombError:
        raise UnreadableError(f"more than {MAX_PIXELS // 10**6} million pixels") from None
    except Exception as error:  # decoders raise errors of many types on damaged files
        raise UnreadableError(f"damaged image ({one_line(error)})") from None
    if is_deep(image) and not deep:
        raise UnreadableError(f"has pixels of type {image.mode}, not 8 bits per channel")
    return image


def is_deep(image: Image.Image) -> bool:
    """Return whether the pixels of an image are integers with more than 8 bits, or floats."""
    return image.mode.startswith(("I", "F"))


def rgb(image: Image.Image) -> Image.Image:
    """Convert a decoded image to upright RGB, as described in the module docstring.

    Raises:
        UnreadableError: Pillow cannot convert the image, or all its values are NaN.
    """
    orientation = orientation_of(image) or 1
    try:
        if is_deep(image):
            image = Image.fromarray(windowed(np.asarray(image)))
            image.getexif()[ORIENTATION] = orientation
        image = image.convert("LA") if image.mode == "La" else image  # for "RGBa", Pillow needs no extra step
        return upright(image).convert("RGB")
    except UnreadableError:
        raise
    except Exception as error:
        raise UnreadableError(f"pixels of type {image.mode} cannot be converted ({one_line(error)})") from None


def windowed(values: np.ndarray) -> np.ndarray:
    """Scale numbers (H, W) to uint8. The two percentiles in `WINDOW` become 0 and 255.

    Raises:
        UnreadableError: No value is finite.
    """
    values = values.astype(np.float32) if values.dtype == np.float16 else values
    known = values if values.dtype.kind != "f" else values[np.isfinite(values)]
    if known.size == 0:
        raise UnreadableError("has no finite value")
    low, high = map(float, np.percentile(known, WINDOW))
    grey = np.empty(values.shape, np.uint8)
    # Convert a few rows at a time: in float64, an image of 60 million pixels (a file of 100 kB) would need 2 GB.
    for first in range(0, len(values), ROWS):
        rows = values[first : first + ROWS].astype(np.float64)
        with np.errstate(over="ignore"):  # infinities overflow
            scaled = (np.nan_to_num(rows, nan=low) - low) / max(high - low, np.finfo(float).tiny)
        grey[first : first + ROWS] = (255 * np.clip(scaled, 0, 1)).round()
    return grey


def orientation_of(image: Image.Image) -> int | None:
    """Return the EXIF orientation from 1 to 8, or None if EXIF cannot be read. Invalid values are returned as 1."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            value = image.getexif().get(ORIENTATION, 1)
        return int(value) if value in FLIPS else 1
    except Exception:  # damaged EXIF raises errors of many types
        return None


def _refuse_giant(image: Image.Image) -> None:
    """Raise UnreadableError if the header states too many pixels, because a small file may expand to gigabytes."""
    if image.width * image.height > MAX_PIXELS:
        raise UnreadableError(f"more than {MAX_PIXELS // 10**6} million pixels")


def is_plain(image: Image.Image) -> bool:
    """Return whether an image is an RGB JPEG or PNG with one frame and no alpha, which datasets store unchanged."""
    one_frame = getattr(image, "n_frames", 1) == 1
    return image.format in SUFFIXES and image.mode == "RGB" and one_frame and "transparency" not in image.info


def png(pixels: np.ndarray) -> bytes:
    """Encode a uint8 image (H, W, 3) or (H, W), or a bool mask (H, W), as PNG. A mask's values become 0 and 255."""
    buffer = BytesIO()
    Image.fromarray(pixels.astype(np.uint8) * 255 if pixels.dtype == bool else pixels).save(buffer, format="png")
    return buffer.getvalue()


def open_rgb(picture: Any) -> Image.Image:
    """Read an image, and convert it to upright RGB as described in the docstring of this module.

    Args:
        picture: A PIL image, a path, the bytes of a file, an undecoded image of `datasets`, or an array. An array has
            the shape (H, W) with any numbers, which are scaled if they have more than 8 bits, or the shape (H, W, C)
            with 1 to 4 channels of uint8 or uint16.

    Raises:
        UnreadableError: The value has none of these types, or cannot be read.
    """
    return rgb(opened(picture))


def _from_array(values: np.ndarray) -> Image.Image:
    """Convert an array to an image with 8 bits per channel."""
    values = values[..., 0] if values.ndim == 3 and values.shape[2] == 1 else values
    is_colour = values.ndim == 3 and 2 <= values.shape[2] <= 4 and values.dtype in (np.uint8, np.uint16)
    if 0 in values.shape or not (is_colour or (values.ndim == 2 and values.dtype.kind in "buif")):
        raise UnreadableError(
            f"an array of {values.dtype}, shape {values.shape}; use grey (H, W), or uint8 from 0 to 255 (H, W, 3)"
        )
    if values.dtype == bool:
        values = values * np.uint8(255)
    elif values.dtype != np.uint8:
        values = (values >> 8).astype(np.uint8) if is_colour else windowed(values)
    return Image.fromarray(np.ascontiguousarray(values))


def _is_lossless_webp(content: bytes) -> bool:
    """Return whether the first image of a WebP file is lossless, that is, stored in a VP8L chunk."""
    place = 12
    while content[:4] == b"RIFF" and content[8:12] == b"WEBP" and place < len(content):
        if content[place : place + 4] in (b"VP8L", b"VP8 "):
            return content[place : place + 4] == b"VP8L"
        size = int.from_bytes(content[place + 4 : place + 8], "little")
        place += 8 + size + size % 2
    return False


def opened(picture: Any) -> Image.Image:
    """Decode any value that `open_rgb` accepts, without changing its mode or orientation.

    Raises:
        UnreadableError: The value has none of the accepted types, or cannot be read.
    """
    if isinstance(picture, np.ndarray):
        picture = _from_array(picture)
    if isinstance(picture, Mapping):
        picture = picture["path"] if picture.get("bytes") is None else picture["bytes"]
    if isinstance(picture, str | Path):
        picture = file_bytes(Path(picture))
    if isinstance(picture, bytes):
        is_lossless = _is_lossless_webp(picture)
        picture = decode(picture, deep=True)
        picture.info |= {"lossless": True} if is_lossless else {}
    if not isinstance(picture, Image.Image):
        raise UnreadableError("no image" if picture is None else f"{type(picture).__name__} is not an image")
    if 0 in picture.size:
        raise UnreadableError("has no pixels")
    _refuse_giant(picture)
    try:
        picture.load()  # Pillow decodes an opened file only here
    except Exception as error:
        raise UnreadableError(f"damaged image ({one_line(error)})") from None
    return picture
