"""Prepare rows of a dataset as a batch: open pictures upright, resize images, and transform masks like their images."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from saliency_bench.data.geometry import Frame, Geometry
from saliency_bench.errors import UserError
from saliency_bench.score_notes import lacks
from saliency_bench.types import Batch, Column
from saliency_bench.utils.devices import sent
from saliency_bench.utils.masks import UnclearMaskError, read_mask
from saliency_bench.utils.pictures import MAX_PIXELS, UnreadableError, open_rgb, opened, orientation_of, rgb


class SampleError(UserError):
    """A sample cannot be prepared. `reason` explains why, without naming the sample."""

    def __init__(self, id: str, reason: str):
        super().__init__(f"image {id}: {reason}; replace the image or leave it out")
        self.reason = reason


def prepared_batch(
    rows: Any,
    frame: Frame,
    geometry: Geometry,
    model: str,
    device: torch.device,
    columns: Sequence[str] = (),
    foreground: str = "",
) -> Batch:
    """Prepare rows as a Batch. See `Classifier.prepare`.

    Args:
        rows: Rows, or a slice of a dataset.
        frame: Function that prepares a picture.
        geometry: Geometry of that preparation, applied to masks.
        model: Id of the classifier, for messages.
        device: Device of the images.
        columns: Names of additional columns.
        foreground: Which pixels of a mask belong to the object, in the form that `read_mask` accepts.
    """
    rows = _as_rows(rows)
    ids = [str(row.get("image_id", position)) for position, row in enumerate(rows)]
    samples = [_sample(row, id, frame, geometry, foreground) for row, id in zip(rows, ids, strict=True)]
    frames, masks, left_out, sizes = zip(*samples, strict=True)
    if len({image.shape for image in frames}) > 1:
        raise UserError(
            f"{model} has no fixed image size, but these images differ in size; call load_classifier with size="
        )
    labels = [-1 if row.get("label") is None else row["label"] for row in rows]
    return Batch(
        images=sent(torch.stack(frames), device),
        masks=torch.from_numpy(np.stack(masks)),
        labels=torch.tensor(labels),
        ids=ids,
        left_out=list(left_out),
        columns={name: _column(name, [row.get(name) for row in rows], sizes, frame, device) for name in columns},
    )


def _column(name: str, values: list, sizes: Sequence[tuple[int, int]], frame: Frame, device: torch.device) -> Column:
    """Return an additional column. Pictures in it are prepared like the images. `sizes`: (width, height) per image."""
    if all(value is None or isinstance(value, str | int | float) for value in values):
        return Column(values, [lacks(name) if value is None else None for value in values])
    pairs = [_further_picture(name, value, size) for value, size in zip(values, sizes, strict=True)]
    pictures, lacking = zip(*pairs, strict=True)
    return Column(sent(torch.stack([frame(picture) for picture in pictures]), device), list(lacking))


def _further_picture(name: str, value: object, size: tuple[int, int]) -> tuple[Image.Image, str | None]:
    """Return (picture, None), or (black picture, reason) if the value is not a picture of this size."""
    black = Image.new("RGB", size)
    if value is None:
        return black, lacks(name)
    try:
        picture = open_rgb(value)
    except UnreadableError as error:
        return black, f"the {name} cannot be read: {error}"
    if picture.size == size:
        return picture, None
    sizes = f"{picture.width} x {picture.height}, but the image is {size[0]} x {size[1]}"
    return black, f"the {name} is {sizes}; they must have the same size"


def _sample(
    row: Mapping, id: str, frame: Frame, geometry: Geometry, foreground: str
) -> tuple[Tensor, np.ndarray, str | None, tuple[int, int]]:
    """Return a row's (prepared image, prepared mask, reason why the mask is missing or None, stored image size)."""
    try:
        stored = opened(row.get("image"))
        picture = rgb(stored)
    except UnreadableError as error:
        raise SampleError(id, f"the image cannot be read: {error}") from error
    resized = geometry.resized(picture.height, picture.width)
    if resized[0] * resized[1] > MAX_PIXELS:
        size = f"{picture.width} x {picture.height}"
        raise SampleError(id, f"the {size} image would be enlarged to more than {MAX_PIXELS // 10**6} million pixels")
    image = frame(picture)
    if row.get("mask") is None:
        return image, np.zeros(image.shape[1:], dtype=bool), "no mask", picture.size
    try:
        mask = read_mask(row["mask"], (picture.height, picture.width), orientation_of(stored) or 1, foreground)
    except UnclearMaskError as error:
        return image, np.zeros(image.shape[1:], dtype=bool), str(error), picture.size
    except UnreadableError as error:
        raise SampleError(id, str(error)) from error
    if not mask.any():
        return image, np.zeros(image.shape[1:], dtype=bool), "empty mask", picture.size
    inside = geometry.mask(Image.fromarray(mask))
    return image, inside, None if inside.any() else "mask emptied by the crop", picture.size


def _as_rows(rows: Any) -> list[Mapping]:
    if isinstance(rows, Mapping) and isinstance(rows.get("image"), list | tuple):
        return [dict(zip(rows, values, strict=True)) for values in zip(*rows.values(), strict=True)]
    rows = [rows] if isinstance(rows, Mapping) else list(rows)
    if not rows:
        raise UserError("there are no rows to prepare")
    return rows
