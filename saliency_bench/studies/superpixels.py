"""SLIC superpixels (Achanta et al., 2012): pieces of an image that can be selected with a click."""

from pathlib import Path
from typing import IO

import numpy as np
from PIL import Image

from saliency_bench.errors import UserError
from saliency_bench.registry import install_hint

PIECES = 300
COMPACTNESS = 12.0
LONGEST = 1000  # longest side in pixels of the reduced image for SLIC


def superpixels(file: Path | IO[bytes]) -> np.ndarray:
    """Divide an RGB image into superpixels. Return the index of each pixel's superpixel, starting at 0, uint16 (H, W).

    An image larger than `LONGEST` is reduced first, because SLIC takes 20 s for 12 megapixels but about one second for
    a reduced image. Each pixel then gets the index of the nearest pixel in the reduced image.

    Raises:
        UserError: Scikit-image is not installed. The message contains the command for installing it.
    """
    try:
        from skimage.segmentation import slic
    except ModuleNotFoundError as error:
        raise UserError(f"pieces need scikit-image: {install_hint('lime')}") from error
    picture = Image.open(file).convert("RGB")
    width, height = picture.size
    if max(width, height) > LONGEST:
        picture.thumbnail((LONGEST, LONGEST), Image.Resampling.BOX)
    pieces = slic(np.asarray(picture), n_segments=PIECES, compactness=COMPACTNESS, start_label=0).astype(np.uint16)
    return pieces[_nearest(pieces.shape[0], height)][:, _nearest(pieces.shape[1], width)]


def _nearest(small: int, large: int) -> np.ndarray:
    """For each of `large` positions, return the index of the nearest of `small` positions."""
    return (2 * np.arange(large) + 1) * small // (2 * large)
