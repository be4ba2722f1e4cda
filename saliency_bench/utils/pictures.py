"""Reads pictures that others made; nothing but `UnreadableError` is raised, whose text is the reason for the report."""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

FORMATS = ("JPEG", "PNG", "GIF", "BMP", "WEBP", "TIFF", "PPM")  # none of them runs a program to decode
SUFFIXES = {"JPEG": ".jpg", "PNG": ".png"}
ORIENTATION = 0x0112
MAX_PIXELS = 64_000_000


class UnreadableError(ValueError):
    """A file that is no usable picture; the text says why."""


@dataclass(frozen=True)
class Picture:
    """An encoded RGB picture: its bytes, the file name ending that fits them, and its size."""

    data: bytes
    suffix: str
    width: int
    height: int


def read(path: Path) -> Picture:
    """A picture file as it goes into a dataset.

    The file's own bytes where they are an upright RGB JPEG or PNG; anything else (GIF, palette, grey, CMYK, alpha,
    EXIF rotation) becomes an upright RGB PNG without loss. Alpha is dropped, of an animation the first frame stays.
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
    """Decode completely, so that a file that ends too early is found here. Raises: UnreadableError."""
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
    except Exception as error:  # decoders raise all kinds of errors on damaged files
        raise UnreadableError(f"damaged image ({' '.join(str(error).split()) or type(error).__name__})") from None
    if image.mode.startswith(("I", "F")):
        raise UnreadableError(f"has pixels of type {image.mode}, not 8 bits a channel")
    return image


def _refuse_giant(image: Image.Image) -> None:
    """The header tells the size: a small file that unpacks to gigabytes is stopped before it is decoded."""
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


def open_picture(thing) -> Image.Image:
    """A picture, upright, of a PIL image, a uint8 or bool array, a path, or what `datasets` gives undecoded.

    Raises: UnreadableError, whose text is the reason.
    """
    if isinstance(thing, Mapping):
        thing = thing["path"] if thing.get("bytes") is None else thing["bytes"]
    if isinstance(thing, np.ndarray):
        if thing.dtype not in (np.uint8, bool):
            raise UnreadableError(f"an array of {thing.dtype}; give uint8 from 0 to 255, or bool for a mask")
        thing = Image.fromarray(thing * np.uint8(255) if thing.dtype == bool else thing)
    if isinstance(thing, str | Path):
        thing = file_bytes(Path(thing))
    if isinstance(thing, bytes):
        thing = decode(thing)
    if not isinstance(thing, Image.Image):
        raise UnreadableError("no picture" if thing is None else f"{type(thing).__name__} is no picture")
    return ImageOps.exif_transpose(thing)
