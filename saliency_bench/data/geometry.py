"""Geometry of a classifier's preprocessing: a resize and then a centred crop, applied to both image and mask.

The checkpoint's own processor prepares the image, so its resampling is exact. The mask is resized with
nearest-neighbour interpolation and cropped to the same box. `probe` compares the image and the mask of a drawn
rectangle, so that a processor with additional steps (padding, flipped channels, an off-centre crop) is rejected instead
of causing wrong scores. `enlarge` upsamples a small map of features or patches to the size of the prepared image.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from saliency_bench.errors import UserError, one_line
from saliency_bench.maps import note_size

if TYPE_CHECKING:
    from torch import Tensor

    from saliency_bench.types import Images, Maps

# number of rounding steps in the range of a small map, and of steps of the upsampled map per step of the small map
CELL_STEPS, PIXEL_STEPS = 2**15, 2**8
TINY = 1e-300  # replaces the step of a map of zeros


@dataclass(frozen=True)
class Geometry:
    """How a classifier's preprocessing resizes and crops images.

    Attributes:
        resize: An int is the new length of the shorter side; the aspect ratio is kept. (height, width) resizes to this
            size regardless of the aspect ratio. None keeps the size.
        crop: (height, width) of the centred crop, or None. A crop larger than the image pads with black.
        rounding: How half of an odd margin is rounded: "floor" (transformers) or "round" (torchvision, timm).
        resample: Interpolation of the image, recorded for information only.
    """

    resize: int | tuple[int, int] | None = None
    crop: tuple[int, int] | None = None
    rounding: str = "floor"
    resample: str = "bilinear"

    @property
    def frame(self) -> tuple[int, int] | None:
        """Size (H, W) of every prepared image, or None if it depends on the image."""
        return self.crop or (self.resize if isinstance(self.resize, tuple) else None)

    def resized(self, height: int, width: int) -> tuple[int, int]:
        """Return the (height, width) of an image after resizing and before the crop."""
        if self.resize is None:
            return height, width
        if isinstance(self.resize, tuple):
            return self.resize
        short, long = min(height, width), max(height, width)
        scaled = int(self.resize * long / short)
        return (self.resize, scaled) if height <= width else (scaled, self.resize)

    def box(self, height: int, width: int) -> tuple[int, int, int, int]:
        """Return (left, top, right, bottom) of the crop in the resized image.

        If the crop pads, the box exceeds the image.
        """
        tall, wide = self.crop or (height, width)
        top, left = self._margin(height, tall), self._margin(width, wide)
        return left, top, left + wide, top + tall

    def _margin(self, length: int, crop: int) -> int:
        """Return the start of the crop along one axis. It is negative if the crop pads."""
        if crop > length:
            return -((crop - length) // 2)
        half = (length - crop) / 2.0
        return round(half) if self.rounding == "round" else int(half)

    def mask(self, mask: Image.Image) -> np.ndarray:
        """Resize and crop a mask (mode L or 1) in the same way as the image.

        The mask must be as large as the image. The result is Bool (H, W).
        """
        height, width = self.resized(mask.height, mask.width)
        resized = mask.resize((width, height), Image.Resampling.NEAREST)
        return np.asarray(resized.crop(self.box(height, width)).convert("L")) >= 128

    def picture(self, picture: Image.Image) -> np.ndarray:
        """Resize and crop a grey image (mode L), and return it as Float (H, W).

        The result only approximates the processor's own resizing.
        """
        height, width = self.resized(picture.height, picture.width)
        resample = Image.Resampling.__members__.get(self.resample.upper(), Image.Resampling.BILINEAR)
        return np.asarray(picture.resize((width, height), resample).crop(self.box(height, width))) / 255

    def __str__(self) -> str:
        steps = []
        if isinstance(self.resize, int):
            steps.append(f"shorter side to {self.resize} ({self.resample})")
        elif self.resize is not None:
            steps.append(f"squash to {self.resize[0]} x {self.resize[1]} ({self.resample})")
        if self.crop is not None:
            steps.append(f"centre crop {self.crop[0]} x {self.crop[1]}")
        return ", ".join(steps) or "as it is"

    def as_dict(self) -> dict[str, object]:
        """Return the settings as a dict for run.json."""
        return asdict(self)


Frame = Callable[[Image.Image], "Tensor"]  # RGB image -> Float (3, H, W) in [0, 1]


def probe(geometry: Geometry, frame: Frame, name: str) -> None:
    """Check that a processor prepares images as a geometry specifies.

    A red rectangle is drawn on a landscape and on a portrait image. The prepared image and the prepared mask of the
    rectangle must agree.

    Raises:
        UserError: The prepared image and mask differ, or the processor fails.
    """
    for width, height in ((300, 200), (200, 300)):
        mask = Image.new("L", (width, height))
        mask.paste(255, (width * 3 // 10, height * 3 // 10, width * 6 // 10, height * 6 // 10))
        picture = Image.merge("RGB", (mask, *(Image.new("L", mask.size),) * 2))
        try:
            red, green, blue = frame(picture).numpy()
        except Exception as error:  # the settings may be untrusted, and processors raise errors of many types
            raise UserError(
                f"the image processor of {name} fails: {type(error).__name__} {one_line(error, 200)}"
            ) from error
        expected = geometry.mask(mask)
        # In a frame of a few pixels, most of the red area is edge, where the image is blurred and the mask is not.
        likely = expected, geometry.picture(mask)
        same_shape = red.shape == expected.shape
        if (
            same_shape
            and max(green.max(), blue.max()) < 0.1
            and min(np.abs(red - drawn).mean() for drawn in likely) < 0.02
        ):
            continue
        raise UserError(
            f"the image processor of {name} does not resize, crop and rescale as its settings state (it may add "
            "padding, or use a different channel order or scale), so masks cannot be aligned with its images; use a "
            "checkpoint with a processor that only resizes, crops and rescales"
        )


def enlarge(small: Tensor, images: Images) -> Maps:
    """Upsample maps (B, h, w) bilinearly to the size of the images, (B, H, W), with `align_corners=False`.

    Cells are first rounded to multiples of q = (max - min) / 2^15, where max and min are the extremes of the map,
    because the last bits of a cell depend on the batch size. Metrics order pixels by exact values, so these bits would
    determine the order of cells that are equal in theory. The interpolation then uses integer multiples of q in
    float64, which is exact for the usual strides, and the result is rounded to multiples of q / 2^8. Pixels that are
    equal in theory (at the border, between equal cells) are therefore exactly equal, and a cell of 0 stays 0. The error
    of a map is at most q / 2 + q / 2^9, which is 2e-5 of its range.
    """
    height, width = images.shape[2:]
    if small.shape[1:] == (height, width):  # at the same size, nothing is interpolated or rounded
        return small.float().contiguous()
    note_size(*small.shape[1:])
    cells = small.double()
    step = (cells.amax(dim=(1, 2), keepdim=True) - cells.amin(dim=(1, 2), keepdim=True)) / CELL_STEPS
    step = step.where(step > 0, cells.abs().amax(dim=(1, 2), keepdim=True).clamp(min=TINY))  # step of a constant map
    enlarged = _stretched(_stretched((cells / step).round(), width, 2), height, 1)
    return enlarged.mul_(PIXEL_STEPS).round_().div_(PIXEL_STEPS).mul_(step).float()


def _stretched(values: Tensor, length: int, axis: int) -> Tensor:
    """Interpolate maps (B, h, w) to a new length along one of the last two axes."""
    import torch

    cells = values.shape[axis]
    # Centres of the pixels in units of cells. The value is constant before the first centre.
    positions = (torch.arange(length, dtype=torch.float64, device=values.device) + 0.5) * cells / length - 0.5
    positions = positions.clamp(min=0)
    before = positions.long()
    after = (before + 1).clamp(max=cells - 1)
    # a + w (b - a) is exactly a if a = b, but (1 - w) a + w b may differ by rounding.
    first, second = values.index_select(axis, before), values.index_select(axis, after)
    weight = (positions - before).view(-1, *[1] * (2 - axis))
    return second.sub_(first).mul_(weight).add_(first)
