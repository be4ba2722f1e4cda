"""Pieces of an image that a click selects: SLIC superpixels (Achanta et al., 2012)."""

from io import BytesIO

import numpy as np
from PIL import Image

from saliency_bench.errors import UserError
from saliency_bench.registry import install_hint

PIECES = 300
COMPACTNESS = 12.0


def superpixels(content: bytes) -> np.ndarray:
    """uint16 (H, W): the number of each pixel's piece, from 0, of an encoded RGB picture.

    Raises: UserError with the line that installs scikit-image.
    """
    try:
        from skimage.segmentation import slic
    except ModuleNotFoundError as error:
        raise UserError(f"pieces need scikit-image: {install_hint('lime')}") from error
    pixels = np.asarray(Image.open(BytesIO(content)).convert("RGB"))
    return slic(pixels, n_segments=PIECES, compactness=COMPACTNESS, start_label=0).astype(np.uint16)
