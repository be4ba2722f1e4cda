"""Geometry of the prepared frame: resize, then a centred crop, applied to image and mask alike.

The image itself goes through the checkpoint's own processor (which keeps its resampling exact); the mask takes the
same box by nearest neighbour. `probe` compares the two on a drawn rectangle, so a processor that does anything else
(pads, flips channels, crops off centre) is rejected instead of giving wrong scores. `enlarge` brings a small
map of features or patches to the frame's size.
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

CELL_STEPS, PIXEL_STEPS = 2**15, 2**8  # per range of a small map; per such step in the enlarged map
TINY = 1e-300  # replaces the largest value of a map of zeros


@dataclass(frozen=True)
class Geometry:
    """Geometry of the prepared frame.

    Attributes:
        resize: An int scales the shorter side to it and keeps the aspect ratio, (height, width) squashes, None keeps
            the size.
        crop: (height, width) of the centred crop, or None; a crop larger than the image pads with black.
        rounding: How an odd margin is halved, "floor" (transformers) or "round" (torchvision, timm).
        resample: The interpolation of the image, for the record only.
    """

    resize: int | tuple[int, int] | None = None
    crop: tuple[int, int] | None = None
    rounding: str = "floor"
    resample: str = "bilinear"

    @property
    def frame(self) -> tuple[int, int] | None:
        """(H, W) of every prepared image, or None if it depends on the image."""
        return self.crop or (self.resize if isinstance(self.resize, tuple) else None)

    def resized(self, height: int, width: int) -> tuple[int, int]:
        """Return (height, width) after resizing and before the crop."""
        if self.resize is None:
            return height, width
        if isinstance(self.resize, tuple):
            return self.resize
        short, long = min(height, width), max(height, width)
        scaled = int(self.resize * long / short)
        return (self.resize, scaled) if height <= width else (scaled, self.resize)

    def box(self, height: int, width: int) -> tuple[int, int, int, int]:
        """Return (left, top, right, bottom) of the crop in the resized image; it exceeds the image if the crop pads."""
        tall, wide = self.crop or (height, width)
        top, left = self._margin(height, tall), self._margin(width, wide)
        return left, top, left + wide, top + tall

    def _margin(self, length: int, crop: int) -> int:
        """Return the start of the crop along a side; negative if it pads."""
        if crop > length:
            return -((crop - length) // 2)
        half = (length - crop) / 2.0
        return round(half) if self.rounding == "round" else int(half)

    def mask(self, mask: Image.Image) -> np.ndarray:
        """Return a mask (mode L or 1, the image's size) in the prepared frame, Bool (H, W)."""
        height, width = self.resized(mask.height, mask.width)
        resized = mask.resize((width, height), Image.Resampling.NEAREST)
        return np.asarray(resized.crop(self.box(height, width)).convert("L")) >= 128

    def picture(self, picture: Image.Image) -> np.ndarray:
        """Return a grey picture (mode L) in the prepared frame, Float (H, W), resized roughly like by its processor."""
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
        """Return the settings for run.json."""
        return asdict(self)


Frame = Callable[[Image.Image], "Tensor"]  # an RGB picture -> Float (3, H, W) in [0, 1]


def probe(geometry: Geometry, frame: Frame, name: str) -> None:
    """Draw a red rectangle, once in landscape and once in portrait, and check that frame and mask agree.

    Raises:
        UserError: The frame and the mask differ, or the processor fails.
    """
    for width, height in ((300, 200), (200, 300)):
        mask = Image.new("L", (width, height))
        mask.paste(255, (width * 3 // 10, height * 3 // 10, width * 6 // 10, height * 6 // 10))
        picture = Image.merge("RGB", (mask, *(Image.new("L", mask.size),) * 2))
        try:
            red, green, blue = frame(picture).numpy()
        except Exception as error:  # settings of a stranger, and processors raise various errors
            raise UserError(
                f"the image processor of {name} fails: {type(error).__name__} {one_line(error, 200)}"
            ) from error
        expected = geometry.mask(mask)
        # In a frame of a few pixels, most of the red area is edge, where the picture is blurred and the mask is not.
        likely = expected, geometry.picture(mask)
        same_shape = red.shape == expected.shape
        if (
            same_shape
            and max(green.max(), blue.max()) < 0.1
            and min(np.abs(red - drawn).mean() for drawn in likely) < 0.02
        ):
            continue
        raise UserError(
            f"the image processor of {name} does not resize, crop and rescale the way its settings say "
            "(padding, another channel order or another scale?); masks cannot follow its images"
        )


def enlarge(small: Tensor, images: Images) -> Maps:
    """Enlarge (B, h, w) to the images' (B, H, W), bilinear with `align_corners=False`.

    Cells are first rounded to multiples of q = (max - min) / 2^15 of their map. The last bits of a cell depend on the
    size of its batch, and metrics order pixels by exact values, so these bits would decide between cells that are equal
    in theory. Interpolation then works on integer multiples of q in float64, where it is exact for the usual strides,
    and its result is rounded to q / 2^8. So pixels that are equal in theory (at the border, between equal cells) are
    exactly equal, a cell of 0 stays 0, and the error of a map is at most q / 2 + q / 2^9, 2e-5 of its range.
    """
    height, width = images.shape[2:]
    if small.shape[1:] == (height, width):  # nothing is enlarged, and no pixels are equal in theory
        return small.float().contiguous()
    note_size(*small.shape[1:])
    cells = small.double()
    step = (cells.amax(dim=(1, 2), keepdim=True) - cells.amin(dim=(1, 2), keepdim=True)) / CELL_STEPS
    step = step.where(step > 0, cells.abs().amax(dim=(1, 2), keepdim=True).clamp(min=TINY))  # a constant map
    enlarged = _stretched(_stretched((cells / step).round(), width, 2), height, 1)
    return enlarged.mul_(PIXEL_STEPS).round_().div_(PIXEL_STEPS).mul_(step).float()


def _stretched(values: Tensor, length: int, axis: int) -> Tensor:
    """Interpolate (B, h, w) to this length along one of its last two axes."""
    import torch

    cells = values.shape[axis]
    # Centres of the pixels in units of cells; the first cell is extended before its centre.
    positions = (torch.arange(length, dtype=torch.float64, device=values.device) + 0.5) * cells / length - 0.5
    positions = positions.clamp(min=0)
    before = positions.long()
    after = (before + 1).clamp(max=cells - 1)
    # a + w (b - a) is exactly a where a = b, which (1 - w) a + w b need not be.
    first, second = values.index_select(axis, before), values.index_select(axis, after)
    weight = (positions - before).view(-1, *[1] * (2 - axis))
    return second.sub_(first).mul_(weight).add_(first)
