"""Reads untrusted pictures. The only exception is `UnreadableError`, whose text is the reason for the build log."""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

FORMATS = ("JPEG", "PNG", "GIF", "BMP", "WEBP", "TIFF", "PPM")  # none of these runs an external program
SUFFIXES = {"JPEG": ".jpg", "PNG": ".png"}
ORIENTATION = 0x0112
MAX_PIXELS = 64_000_000


class UnreadableError(ValueError):
    """A file that is not a usable picture; the text says why."""


@dataclass(frozen=True)
class Picture:
    """An encoded RGB picture: its bytes, the matching file suffix, and its size in pixels."""

    data: bytes
    suffix: str
    width: int
    height: int


def read(path: Path) -> Picture:
    """A picture file as it goes into a dataset.

    The file's own bytes where they are an upright RGB JPEG or PNG; anything else (GIF, palette, grey, CMYK, alpha,
    EXIF rotation) becomes a lossless upright RGB PNG. Alpha is dropped; only the first frame of an animation is kept.
    Raises: UnreadableError.
    """
    data = file_bytes(path)
    image = decode(data)
    if _plain(image):
        return Picture(data, SUFFIXES[image.format or ""], *image.size)
    upright = ImageOps.exif_transpose(image)
    return Picture(png(np.asarray(upright.convert("RGB"))), ".png", *upright.size)


def values(path: Path) -> np.ndarray:
    """The pixel values (H, W) of a one-channel picture such as a trimap; palette indices where it has a palette.

    Raises: UnreadableError.
    """
    image = decode(file_bytes(path))
    if image.mode not in ("1", "L", "P"):
        raise UnreadableError(f"has pixels of type {image.mode}, not one 8-bit channel")
    return np.asarray(image).astype(np.uint8)


def file_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UnreadableError(f"cannot be read ({error.strerror})") from None


def decode(data: bytes) -> Image.Image:
    """Decode completely, so that a truncated file is detected here. Raises: UnreadableError."""
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
    except Exception as error:  # decoders raise many kinds of errors on damaged files
        raise UnreadableError(f"damaged image ({' '.join(str(error).split()) or type(error).__name__})") from None
    if image.mode.startswith(("I", "F")):
        raise UnreadableError(f"has pixels of type {image.mode}, not 8 bits a channel")
    return image


def _refuse_giant(image: Image.Image) -> None:
    """Checks the size in the header: a small file that unpacks to gigabytes is rejected before it is decoded."""
    if image.width * image.height > MAX_PIXELS:
        raise UnreadableError(f"more than {MAX_PIXELS // 10**6} million pixels")


def _plain(image: Image.Image) -> bool:
    upright = image.getexif().get(ORIENTATION, 1) == 1
    one_frame = getattr(image, "n_frames", 1) == 1
    return (
        image.format in SUFFIXES and image.mode == "RGB" and upright and one_frame and "transparency" not in image.info
    )


def png(pixels: np.ndarray) -> bytes:
    """PNG of uint8 (H, W, 3), uint8 (H, W), or bool (H, W), which becomes 0 and 255."""
    buffer = BytesIO()
    Image.fromarray(pixels.astype(np.uint8) * 255 if pixels.dtype == bool else pixels).save(buffer, format="png")
    return buffer.getvalue()


def open_picture(picture: Any) -> Image.Image:
    """An upright picture from a PIL image, a uint8 or bool array, a path, or an undecoded image of `datasets`.

    Raises: UnreadableError for anything else, and for unreadable files.
    """
    if isinstance(picture, Mapping):
        picture = picture["path"] if picture.get("bytes") is None else picture["bytes"]
    if isinstance(picture, np.ndarray):
        if picture.dtype not in (np.uint8, bool):
            raise UnreadableError(f"an array of {picture.dtype}; give uint8 from 0 to 255, or bool for a mask")
        picture = Image.fromarray(picture * np.uint8(255) if picture.dtype == bool else picture)
    if isinstance(picture, str | Path):
        picture = file_bytes(Path(picture))
    if isinstance(picture, bytes):
        picture = decode(picture)
    if not isinstance(picture, Image.Image):
        raise UnreadableError("no picture" if picture is None else f"{type(picture).__name__} is not a picture")
    return ImageOps.exif_transpose(picture)
