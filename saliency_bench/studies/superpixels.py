"""Pieces of an image that a click selects: SLIC superpixels (Achanta et al., 2012)."""

from pathlib import Path
from typing import IO

import numpy as np
from PIL import Image

from saliency_bench.errors import UserError
from saliency_bench.registry import install_hint

PIECES = 300
COMPACTNESS = 12.0
LONGEST = 1000  # pixels of the longest side on which pieces are computed


def superpixels(file: Path | IO[bytes]) -> np.ndarray:
    """Return the number of each pixel's piece of an RGB picture, from 0, uint16 (H, W).

    A picture larger than `LONGEST` is reduced first, and each of its pixels gets the piece of the nearest reduced
    pixel: SLIC takes 20 s for 12 megapixels, and about one second for a reduced picture.

    Raises:
        UserError: scikit-image is not installed; the message has the command that installs it.
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
    """Return the index of the nearest of `small` positions for the centre of each of `large` positions."""
    return (2 * np.arange(large) + 1) * small // (2 * large)
