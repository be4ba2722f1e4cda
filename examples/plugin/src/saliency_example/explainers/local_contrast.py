"""Measure how much each pixel differs from its surroundings. The network is not used.

map(y, x) = mean over channels of |image - mean of the image over a square of `side` pixels around (y, x)|
"""

from torch.nn.functional import avg_pool2d

import saliency_bench as sb
from saliency_bench import Classifier, Images, Maps, Target


def check(*, side: int) -> None:
    """Raise ValueError if an option is out of range."""
    if side < 1 or side % 2 == 0:
        raise ValueError(f"side of local_contrast must be odd and above 0; got {side}")


@sb.explainer(version=1, needs="nothing", passes=0, check=check)
def local_contrast(classifier: Classifier, images: Images, target: Target, *, side: int = 7) -> Maps:
    """Return the local contrast of every image.

    Args:
        classifier: not used.
        images: images of shape (B, 3, H, W) in [0, 1].
        target: not used.
        side: side of the square in pixels, an odd number.

    Returns:
        Maps (B, H, W) in [0, 1].
    """
    around = avg_pool2d(images, side, stride=1, padding=side // 2, count_include_pad=False)
    return (images - around).abs().mean(dim=1)
