"""Read masks. Builds, runs, studies and publishing use the same rules, and never guess which pixels are the object.

Either a mask has two values, with 0 or black as the background, or the user chooses the object (`mask_values.choices`).
The values that count are the indices of a palette image, the alpha of an image in a single colour, and the numbers of a
16-bit or float image. Any other mask raises an `UnreadableError` that lists the values and names the option that
selects the object.
"""

from typing import Any

import numpy as np
from PIL import Image

from saliency_bench.utils.mask_values import ALPHA, NONZERO, NOT_NUMBERS, SHOWN, Choice, choices, in_words, unclear
from saliency_bench.utils.messages import complain_once
from saliency_bench.utils.pictures import UnreadableError, opened, orientation_of, turned

DEEP = ("I", "F")  # first letters of modes with more than 8 bits per channel
LOSSY = ("JPEG", "MPO")
OFTEN_LOSSY = ("WEBP", "AVIF", "JPEG2000")
TINT = 2  # maximum difference between the channels of a grey pixel in these formats
PREMULTIPLIED = {"La": "LA", "RGBa": "RGBA"}
CHOOSE = "choose the object with --foreground"


class UnclearMaskError(UnreadableError):
    """A mask is readable but does not define the object. The message contains the reason and the fix."""


def read_mask(given: Any, size: tuple[int, int], orientation: int = 1, foreground: str = "") -> np.ndarray:
    """Return the object's pixels in a mask, bool (H, W). The mask is rotated like its image, according to EXIF.

    Args:
        given: Any type that `opened` accepts, or numbers (H, W) as an array, a tensor or lists.
        size: (height, width) of the image after its EXIF orientation is applied.
        orientation: EXIF orientation of the image file, 1 to 8.
        foreground: Words for `mask_values.choices`, or "" if the mask itself defines the object.

    Raises:
        UnclearMaskError: The mask does not define the object.
        UnreadableError: The mask cannot be read, or its size differs from the image's size.
    """
    try:
        stored = _opened(given)
    except UnreadableError as error:
        raise UnreadableError(f"the mask cannot be read: {error}") from None
    turn = _turn(stored, size, orientation)  # checked before the values, because resizing turns two values into many
    return turned(object_in(stored, foreground), turn)


def _opened(given: Any) -> Image.Image:
    if isinstance(given, list | tuple) and any(isinstance(item, dict | Image.Image) for item in given):
        raise UnreadableError(f"a list of {len(given)} images, but a sample has one mask; combine them into one")
    if hasattr(given, "detach"):  # a tensor, detected without importing torch; numpy has no bfloat16
        given = given.detach().cpu()
        given = (given.float() if given.is_floating_point() else given).numpy()
    if isinstance(given, list | tuple):
        try:
            given = np.asarray(given)
        except (ValueError, TypeError):
            raise UnreadableError("not an array of numbers (H, W)") from None
    if isinstance(given, np.ndarray) and given.dtype.kind in "biuf":
        given = given[0] if given.ndim == 3 and len(given) == 1 else given
        given = given[..., 0] if given.ndim == 3 and given.shape[2] == 1 else given
        if given.ndim == 2 and given.dtype not in (bool, np.uint8, np.uint16):
            given = given.astype(np.int32 if given.dtype.kind in "iu" and given.itemsize < 4 else np.float32)
        if given.ndim != 2 and given.dtype != np.uint8:
            raise UnreadableError(f"an array of {given.dtype}, shape {given.shape}; use (H, W), or uint8 (H, W, 3)")
        given = Image.fromarray(given) if given.ndim == 2 else given
    return opened(given)


def _turn(stored: Image.Image, size: tuple[int, int], orientation: int) -> int:
    """Return the EXIF orientation that makes a mask fit its upright image.

    The first rule that applies determines the orientation: the mask's own orientation if the turned mask fits; the
    orientation of the image if the mask has the size of the image file as stored (even if the upright image has the
    same size); 1 if the mask has the size of the upright image.

    Raises:
        UnreadableError: The mask has any other size.
    """
    as_it_is = (stored.height, stored.width)
    own_turn = orientation_of(stored) or 1
    for turn in (own_turn, orientation):
        if turn != 1 and (as_it_is[::-1] if turn >= 5 else as_it_is) == size:
            if turn != own_turn and as_it_is == size:
                complain_once(
                    "some images have an EXIF orientation, and their masks may have been drawn on the stored or on the "
                    "upright image (both have the same size); these masks are turned with their images"
                )
            return turn
    if as_it_is == size:
        return 1
    raise UnreadableError(
        f"the mask is {stored.width} x {stored.height}, but its image is {size[1]} x {size[0]}; the sizes must be equal"
    )


def object_in(stored: Image.Image, foreground: str = "") -> np.ndarray:
    """Return which pixels of a mask file belong to the object, bool (H, W). The mask is not rotated.

    Raises:
        UnclearMaskError: The mask does not define the object.
    """
    chosen = choices(foreground)
    image = stored.convert(PREMULTIPLIED[stored.mode]) if stored.mode in PREMULTIPLIED else stored
    alpha = _alpha(image)
    codes, background, is_colour = _coded(image, alpha)
    if _is_blurred(stored, codes) and not all(isinstance(each, tuple) and len(each) == 2 for each in chosen or [0]):
        raise UnclearMaskError(f"a {stored.format} mask with blurred values; save masks as PNG, or set a "
                               "threshold, such as --foreground 128+ (in Python mask_values=)")  # fmt: skip
    if is_colour and _is_blurred(stored, codes) and (greys := _nearly_grey(image)) is not None:
        codes, background, is_colour = greys, 0, False
    if chosen:
        return np.logical_or.reduce([_chosen(each, image, alpha, codes, background, is_colour) for each in chosen])
    if reason := unclear(codes, background):
        raise UnclearMaskError(_with_fix(reason, codes, is_colour, alpha is not None))
    inside = codes != background
    if alpha is not None and codes is not alpha and ((alpha > 0) != inside).any():
        raise UnclearMaskError(
            f"the colour and the alpha channel of the mask disagree; {CHOOSE}, such as --foreground 255 or "
            "--foreground alpha (in Python: mask_values=)"
        )
    return inside


def _is_blurred(stored: Image.Image, codes: np.ndarray) -> bool:
    """Return whether the file format has changed the values of a mask.

    A format with a lossless variant is assumed to have changed them if the file is not known to be lossless and the
    mask has more than two values.
    """
    if stored.format in OFTEN_LOSSY and not stored.info.get("lossless"):
        return len(np.unique(codes)) > 2
    return stored.format in LOSSY


def _nearly_grey(image: Image.Image) -> np.ndarray | None:
    """Return the grey values (H, W) of an image, or None if it has colours. A lossy format may tint grey slightly."""
    channels, greys = np.asarray(image.convert("RGB")), np.asarray(image.convert("RGB").convert("L"))
    is_tinted = (channels.max(-1) - channels.min(-1) <= TINT).all()
    return greys if is_tinted and np.ptp(greys) > 10 * TINT else None  # a few dark colours may be class numbers


def _alpha(image: Image.Image) -> np.ndarray | None:
    """Return the alpha channel (H, W) of an image, or None if alpha is constant."""
    if "A" in image.getbands():
        alpha = image.getchannel("A")
    elif "transparency" in image.info and not image.mode.startswith(DEEP):
        alpha = image.convert("RGBA").getchannel("A")
    else:
        return None
    low, high = alpha.getextrema()
    return None if low == high else np.asarray(alpha)


def _coded(image: Image.Image, alpha: np.ndarray | None) -> tuple[np.ndarray, int, bool]:
    """Return (code of each pixel, code of the background, whether codes are colours 65536 R + 256 G + B).

    The background is 0 or black. In a palette, the background is the index with the colour black, because programs that
    write small files reorder colours. In a palette without black, the background is index 0 if there are other indices.
    If all pixels have the same colour and alpha varies, alpha is the code.
    """
    if (image.mode in ("1", "L") and alpha is None) or image.mode.startswith(DEEP):
        return np.asarray(image), 0, False
    channels = np.asarray(image.convert("RGB"))
    colours = channels.astype(np.uint32) @ np.array([1 << 16, 1 << 8, 1], np.uint32)
    if alpha is not None and (colours == colours.flat[0]).all():
        return alpha, 0, False
    if image.mode in ("P", "PA"):
        indices = np.asarray(image.getchannel(0))
        black = np.unique(indices[colours == 0])
        if len(black) == 1:
            return indices, int(black[0]), False
        return indices, 0 if len(black) or indices.any() else -1, False
    is_grey = (channels == channels[..., :1]).all()
    return (channels[..., 0], 0, False) if is_grey else (colours, 0, True)


def _chosen(
    choice: Choice, image: Image.Image, alpha: np.ndarray | None, codes: np.ndarray, background: int, is_colour: bool
) -> np.ndarray:
    """Return which pixels one of the user's choices selects, bool (H, W)."""
    if choice == NONZERO:
        if np.isnan(codes).any():  # NaN may mean "background" or "unknown"
            raise UnclearMaskError(_with_fix(NOT_NUMBERS, codes, is_colour, False))
        return codes != background
    if choice == ALPHA:
        if alpha is None:
            raise UnclearMaskError("a mask whose alpha is constant; set --foreground to a value or a colour")
        if reason := unclear(alpha):
            raise UnclearMaskError(_with_fix(f"an alpha with {reason}", alpha, False, False))
        return alpha > 0
    if isinstance(choice, tuple) and len(choice) == 3:
        if image.mode.startswith(DEEP):
            raise UnclearMaskError("a mask of numbers has no colours; set --foreground to a value")
        return (np.asarray(image.convert("RGB")) == choice).all(-1)
    if is_colour:
        raise UnclearMaskError("a mask of colours cannot be compared with a number; set --foreground to a colour")
    return codes >= choice[1] if isinstance(choice, tuple) else codes == choice


def _with_fix(reason: str, codes: np.ndarray, is_colour: bool, has_alpha: bool) -> str:
    """Explain why a mask does not define the object. The message lists the mask's values and the option to set."""
    distinct = np.unique(codes)
    hint = ", or alpha" if has_alpha else ""
    if is_colour:
        values = ", ".join(f"#{colour:06x}" for colour in distinct) if len(distinct) <= SHOWN else "many colours"
    else:
        values = in_words(distinct)
        if len(distinct) > SHOWN:
            known = distinct[np.isfinite(distinct)].astype(float)
            hint = f", or a threshold such as {(known[0] + known[-1]) / 2:g}+"
    return f"a mask with {reason}; {CHOOSE}{hint} ({values}; in Python mask_values=)"
