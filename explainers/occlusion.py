"""Occlusion (Zeiler and Fergus, 2014): drop in the score when a window of the image is covered.

    map(pixel) = mean over the windows k that cover the pixel of  score(x) - score(x with window k covered)

Windows are squares with a side of `window` pixels, spaced `stride` pixels apart. A side of length L has ceil((L -
window) / stride) + 1 windows, and the last window is cut off at the border (see docs/other_packages.md for other
packages). Covered pixels are replaced by the baseline, which by default is zero after normalisation (grey in Zeiler and
Fergus). Each sample needs one forward pass per window, and one for the image itself. On a CPU, early layers of a
convolutional network compute only the region that a window can affect (`compute/classifiers/windows.py`). In half
precision, a score has two or three significant digits, so the drops of small windows are lost to rounding. Li et al.
(2020) evaluate the method in section 2.2.1.
"""

import torch
from torch import Tensor

from saliency_bench.compute.classifiers.classifier import Classifier
from saliency_bench.compute.classifiers.passes import scores_of
from saliency_bench.compute.classifiers.windows import Windows
from saliency_bench.declarations import explainer
from saliency_bench.errors import UserError
from saliency_bench.explainers._checks import check_batch_size
from saliency_bench.explainers._fills import Fill, filled
from saliency_bench.types import Images, Maps, On, Target


def passes(options: dict, height: int, width: int) -> int:
    """Return the number of forward passes for one image: one per window, and one for the image itself."""
    window, stride = _resolved(options["window"], options["stride"], height, width)
    return _count(height, window, stride) * _count(width, window, stride) + 1


def check(
    *, window: int | None = None, stride: int | None = None, batch_size: int | None = None, **others: object
) -> None:
    """Raise UserError if an option is out of range."""
    check_batch_size("occlusion", batch_size)
    if any(number is not None and number < 1 for number in (window, stride)):
        raise UserError(f"window and stride of occlusion must be at least 1; got {window=} and {stride=}")
    if window is not None and stride is not None and stride > window:
        raise UserError(
            f"stride={stride} of occlusion is larger than window={window}, so some pixels would not be covered; "
            "reduce `stride`"
        )


@explainer(version=3, needs="outputs", passes=passes, signed=True, check=check, also_called=("sliding window",))
def occlusion(
    classifier: Classifier,
    images: Images,
    target: Target,
    *,
    window: int | None = None,
    stride: int | None = None,
    baseline: Fill = "zero",
    on: On = "logit",
    batch_size: int | None = None,
) -> Maps:
    """Return the mean drop in the score over the windows that cover each pixel.

    Args:
        classifier: Network to explain.
        images: Images of shape (B, 3, H, W) with values in [0, 1].
        target: Weights over the logits, of shape (B, K).
        window: Side of a window in pixels. None: an eighth of the image's shorter side.
        stride: Distance between windows in pixels. None: half of `window`.
        baseline: Values in a covered window: "zero" (after normalisation), "black" or "white" (in [0, 1]), or "blur"
            (the image blurred by a Gaussian of 11 x 11 pixels with sigma 5).
        on: Whether the target's weights apply to logits ("logit") or to probabilities ("probability").
        batch_size: Number of pictures in memory and in one forward pass. None: for images of 224 x 224 pixels, 10 on a
            CPU and 256 on a GPU.

    Returns:
        Signed maps of shape (B, H, W), positive for pixels that lower the score when they are covered.

    Raises:
        UserError: The window is larger than the image, or the stride would leave pixels uncovered.
    """
    height, width = images.shape[2:]
    window, stride = _resolved(window, stride, height, width)
    if window > min(height, width):
        raise UserError(
            f"window={window} of occlusion is larger than the image ({height} x {width} pixels); reduce `window`"
        )
    check(window=window, stride=stride)
    rows, columns = (_spans(length, window, stride).to(images.device) for length in (height, width))
    across = len(columns)
    background = filled(classifier, images, baseline)
    covering = torch.cat([rows, torch.zeros_like(rows[:1])])  # the last row covers nothing, for the image itself

    def covered(samples: Tensor, pictures: Tensor) -> Images:
        """Return pictures in which one window is covered."""
        hidden = covering[pictures // across][:, :, None] & columns[pictures % across][:, None, :]  # (n, H, W)
        return torch.where(hidden[:, None], background[samples], images[samples])

    top, left = (stride * torch.arange(_count(length, window, stride)) for length in (height, width))
    corners = torch.cartesian_prod(top.clamp(max=height - window), left.clamp(max=width - window))
    windows = Windows(torch.cat([corners, corners[:1]]), window)
    scores = scores_of(classifier, images, target, len(windows.corners), covered, on, batch_size, windows)
    drops = (scores[:, -1:] - scores[:, :-1]).view(len(images), len(rows), across)
    # Use float64, so that sums of the same windows in a different order are equal when rounded to float32.
    down, right = rows.double(), columns.double()
    maps = torch.einsum("bij,ih,jw->bhw", drops.double(), down, right) / (down.sum(0)[:, None] * right.sum(0))
    return maps.float()


def _resolved(window: int | None, stride: int | None, height: int, width: int) -> tuple[int, int]:
    window = window or max(1, min(height, width) // 8)
    return window, stride or max(1, window // 2)


def _count(length: int, window: int, stride: int) -> int:
    return -(-(length - window) // stride) + 1


def _spans(length: int, window: int, stride: int) -> Tensor:
    """Return whether each of the N windows along one side covers each position, bool (N, length)."""
    starts = stride * torch.arange(_count(length, window, stride))[:, None]
    positions = torch.arange(length)
    return (starts <= positions) & (positions < starts + window)
