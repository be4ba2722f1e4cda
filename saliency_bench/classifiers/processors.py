"""The geometry of an image processor: how transformers, timm and torchvision resize, crop and normalise."""

from collections.abc import Sequence
from typing import Any

import torch
from PIL import Image

from saliency_bench.classifiers.geometry import Frame, Geometry
from saliency_bench.errors import UserError


def frame_of(processor: Any, name: str) -> tuple[Geometry, Frame, Sequence[float], Sequence[float]]:
    """Geometry, frame function, mean and std of an image processor of transformers, or of timm's wrapper.

    Raises: UserError for a processor whose steps masks cannot follow.
    """
    if hasattr(processor, "val_transforms"):
        return _timm_frame(processor, name)
    settings = processor.to_dict()
    size = {key: value for key, value in dict(settings.get("size") or {}).items() if value}
    crop_size = {key: value for key, value in dict(settings.get("crop_size") or {}).items() if value}
    resize: int | tuple[int, int] | None = None
    crop: tuple[int, int] | None = None
    if settings.get("do_resize", True):
        resize = (size["height"], size["width"]) if "height" in size else size.get("shortest_edge")
        if resize is None or "longest_edge" in size:
            raise UserError(f"the image processor of {name} resizes by {size}, which masks cannot follow")
        if isinstance(resize, int) and settings.get("crop_pct"):
            # ConvNeXT: enlarge and crop below 384, squash from there on.
            square = (resize, resize)
            resize, crop = (int(resize / settings["crop_pct"]), square) if resize < 384 else (square, None)
    if settings.get("do_center_crop"):
        crop = (crop_size["height"], crop_size["width"])

    def frame(image: Image.Image) -> torch.Tensor:
        return processor(images=image, do_normalize=False, return_tensors="pt")["pixel_values"][0].float()

    normalised = settings.get("do_normalize", True)
    mean = settings["image_mean"] if normalised else (0.0,) * 3
    std = settings["image_std"] if normalised else (1.0,) * 3
    resample = Image.Resampling(settings.get("resample") or 2).name.lower()
    return Geometry(resize, crop, "floor", resample), frame, mean, std


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
            raise UserError(f"the timm transform {type(step).__name__} of {name} is one that masks cannot follow")
    data = processor.data_config
    return Geometry(resize, crop, "round", resample), T.Compose(steps), data["mean"], data["std"]


def pair_of(size: Any) -> int | tuple[int, int] | None:
    """A size that torchvision writes as 256, [256] or [224, 224]."""
    if size is None or isinstance(size, int):
        return size
    return int(size[0]) if len(size) == 1 else (int(size[0]), int(size[1]))
