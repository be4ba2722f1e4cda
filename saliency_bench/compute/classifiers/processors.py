"""Read resizing, cropping and normalisation from the image processors of transformers, timm and torchvision."""

from collections.abc import Iterable, Sequence
from math import isqrt
from typing import Any

import numpy as np
import torch
from PIL import Image

from saliency_bench.data.geometry import Frame, Geometry
from saliency_bench.errors import UserError, one_line
from saliency_bench.utils.messages import complain

MAX_SIDE = 4096  # pixels
LARGEST_STD = 10  # for images in [0, 1] after any sensible scaling; for images up to 255 the values are 50 or 60
MAX_FRAME = 2**22  # pixels; 50 MB for one image in float32, and many times that for the features of a network


def frame_of(processor: Any, name: str) -> tuple[Geometry, Frame, Sequence[float], Sequence[float]]:
    """Return the geometry, frame function, mean and std of a transformers image processor or timm's wrapper.

    Raises:
        UserError: The processor has a step that cannot be applied to masks, or invalid settings.
    """
    try:
        return (_timm_frame if hasattr(processor, "val_transforms") else _transformers_frame)(processor, name)
    except UserError:
        raise
    except (TypeError, ValueError, KeyError, ArithmeticError) as error:
        reason = f"{type(error).__name__} {one_line(error, 200)}"
        raise UserError(f"the image processor of {name} has invalid settings: {reason}") from error


def _transformers_frame(processor: Any, name: str) -> tuple[Geometry, Frame, Sequence[float], Sequence[float]]:
    settings, where = processor.to_dict(), f"the image processor of {name}: "
    if settings.get("do_pad"):
        raise UserError(f"the image processor of {name} pads images (do_pad), and this cannot be applied to masks")
    normalised = settings.get("do_normalize", True)
    mean = channels(f"{where}image_mean", settings.get("image_mean") if normalised else 0)
    std = channels(f"{where}image_std", settings.get("image_std") if normalised else 1)
    resample = Image.Resampling(settings.get("resample") or 2)
    if "max_num_patches" in settings:
        return *_patches_frame(settings, where, resample, name), mean, std
    size, crop_size = (_lengths(settings.get(key)) for key in ("size", "crop_size"))
    resize: int | tuple[int, int] | None = None
    crop: tuple[int, int] | None = None
    if settings.get("do_resize", True):
        resize = (size["height"], size["width"]) if "height" in size else size.get("shortest_edge")
        if resize is None or "longest_edge" in size:
            raise UserError(
                f"the image processor of {name} resizes to {one_line(size, 80)}, and this cannot be applied to masks"
            )
        check_sides(f"{where}size", size.values())
        if isinstance(resize, int) and settings.get("crop_pct"):
            # ConvNeXT enlarges and crops images for sizes below 384, and squashes images for sizes from 384 on.
            square = (resize, resize)
            resize, crop = (int(resize / settings["crop_pct"]), square) if resize < 384 else (square, None)
            check_sides(f"{where}size by crop_pct", _sides(resize))
    if settings.get("do_center_crop"):
        crop = (crop_size["height"], crop_size["width"])
        check_sides(f"{where}crop_size", crop)

    def frame(image: Image.Image) -> torch.Tensor:
        """Return a picture prepared by the processor, without normalisation."""
        return processor(images=image, do_normalize=False, return_tensors="pt")["pixel_values"][0].float()

    return Geometry(resize, crop, "floor", resample.name.lower()), frame, mean, std


def _patches_frame(
    settings: dict[str, Any], where: str, resample: Image.Resampling, name: str
) -> tuple[Geometry, Frame]:
    """Return the geometry and frame of a processor that cuts pictures of any shape into patches (SigLIP 2 with NaFlex).

    All pictures of a run must have the same size, so they are squashed to the size that the processor uses for square
    pictures.
    """
    from torchvision.transforms.v2 import functional as T

    side = isqrt(settings["max_num_patches"]) * settings["patch_size"]
    check_sides(f"{where}max_num_patches", (side,))
    complain(
        f"{name} accepts pictures of any shape, but here all pictures are squashed to {side} x {side}, whatever their "
        "aspect ratio"
    )
    interpolation = T.InterpolationMode(resample.name.lower())

    def frame(image: Image.Image) -> torch.Tensor:
        return T.resize(T.pil_to_tensor(image), [side, side], interpolation, antialias=True).float() / 255

    return Geometry(resize=(side, side), resample=resample.name.lower()), frame


def _lengths(size: Any) -> dict[str, int]:
    return {key: value for key, value in dict(size or {}).items() if value is not None}


def _timm_frame(processor: Any, name: str) -> tuple[Geometry, Frame, Sequence[float], Sequence[float]]:
    from torchvision import transforms as T

    steps = [step for step in processor.val_transforms.transforms if not isinstance(step, T.Normalize)]
    resize: int | tuple[int, int] | None = None
    crop: tuple[int, int] | None = None
    resample = "bilinear"
    for step in steps:
        if isinstance(step, T.Resize):
            resize, resample = pair_of(step.size), step.interpolation.value
        elif isinstance(step, T.CenterCrop):
            crop = tuple(step.size)
        elif not type(step).__name__.endswith("ToTensor"):
            raise UserError(f"the timm transform {type(step).__name__} of {name} cannot be applied to masks")
    data, where = processor.data_config, f"the image processor of {name}: "
    for size in (resize, crop):
        check_sides(f"{where}input_size", _sides(size))
    mean, std = channels(f"{where}mean", data["mean"]), channels(f"{where}std", data["std"])
    return Geometry(resize, crop, "round", resample), T.Compose(steps), mean, std


def pair_of(size: Any) -> int | tuple[int, int] | None:
    """Convert a size to an integer or a pair. torchvision may store sizes as 256, [256] or [224, 224]."""
    if size is None or isinstance(size, int):
        return size
    return int(size[0]) if len(size) == 1 else (int(size[0]), int(size[1]))


def _sides(size: int | tuple[int, int] | None) -> tuple[int, ...]:
    return () if size is None else size if isinstance(size, tuple) else (size,)


def check_sides(name: str, sides: Iterable[Any]) -> None:
    """Raise UserError if a side is not a whole number from 1 to `MAX_SIDE`, or if the area is too large.

    Args:
        name: Name of the setting, for messages.
        sides: Sides in pixels; None is ignored, and a single side means a square.
    """
    given = [side for side in sides if side is not None]
    for side in given:
        if not (type(side) is int and 1 <= side <= MAX_SIDE):
            got = one_line(repr(side), 80)
            raise UserError(f"{name} has a side of {got}; use whole numbers of pixels from 1 to {MAX_SIDE}")
    if given and given[0] * given[-1] > MAX_FRAME:
        raise UserError(
            f"{name} of {given[0]} x {given[-1]} has more than {MAX_FRAME} pixels ({int(MAX_FRAME**0.5)} x "
            f"{int(MAX_FRAME**0.5)}); choose a smaller size"
        )


def channels(name: str, values: Any) -> Sequence[float]:
    """Return three numbers, one per channel. A single number applies to all channels.

    Args:
        name: Name of the setting, for messages. If the name ends in "std", the values must be above 0.
        values: The numbers.

    Raises:
        UserError: The values are not one or three numbers, or are meant for images with values from 0 to 255.
    """
    try:
        numbers = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        numbers = np.empty(0)
    positive = name.endswith("std")
    if numbers.shape not in ((), (1,), (3,)) or not np.isfinite(numbers).all() or (positive and (numbers <= 0).any()):
        above = " above 0" * positive
        raise UserError(
            f"{name} must be either one number{above} or three numbers{above} (one per channel); got "
            f"{one_line(repr(values), 80)}"
        )
    if numbers.max() > (LARGEST_STD if positive else 1):
        fix = ", ".join(f"{number / 255:.4g}" for number in numbers.flat)
        raise UserError(
            f"{name} is for images with values from 0 to 255, but these images have values from 0 to 1; divide it by "
            f"255: use {fix} instead of {one_line(repr(values), 80)}"
        )
    return np.broadcast_to(numbers, 3).tolist()
