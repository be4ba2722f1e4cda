"""Load images, masks and labels as tensors for a `DataLoader` (Zhang et al., 2023, appendices A.2 and A.3)."""

from collections.abc import Callable, Sequence
from operator import index
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import torch
from PIL import Image
from torch import Tensor
from torch.utils import data

from saliency_bench.compute.classifiers.preparation import SampleError, prepared_batch
from saliency_bench.data.geometry import Geometry
from saliency_bench.data.loading import find, with_classes
from saliency_bench.errors import UserError, one_line, unknown
from saliency_bench.score_notes import is_expected
from saliency_bench.utils.mask_values import words_of

Sample = tuple[Tensor, Tensor, Tensor]
READ = ("image", "mask", "label", "image_id")
PAIR = "use a transform that takes (image, mask) and returns both, like those in torchvision.transforms.v2"


class TorchDataset(data.Dataset[Sample]):
    """The samples of a split as (image, mask, label), created by `torch_dataset`.

    Attributes:
        rows: The split, as `load_dataset` returns it.
        classes: Class names in the order of the labels; None for labels without names.
    """

    def __init__(self, rows: datasets.Dataset, transform: Callable[..., Any] | None, foreground: str) -> None:
        self.rows = rows
        kind = rows.features["label"]
        self.classes = list(kind.names) if isinstance(kind, datasets.ClassLabel) else None
        self._transform, self._foreground = transform, foreground
        stored = rows.select_columns([name for name in READ if name in rows.features])
        for column in ("image", "mask"):
            stored = stored.cast_column(column, datasets.Image(decode=False))
        self._stored = stored

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self._stored)

    def __getitem__(self, position: int) -> Sample:
        """Return the sample at this position.

        Raises:
            UserError: The image or mask cannot be read, the sample has no label, or the transform fails.
        """
        row = {"image_id": index(position)} | self._stored[index(position)]
        name = str(row["image_id"])
        if row["label"] is None or row["label"] < 0:
            raise SampleError(name, "it has no label")
        batch = prepared_batch([row], _pixels, Geometry(), "", torch.device("cpu"), foreground=self._foreground)
        reason = batch.left_out[0]
        if reason is not None and not is_expected(reason):
            raise SampleError(name, reason)
        image, mask = batch.images[0], batch.masks[0]
        if self._transform is not None:
            image, mask = _transformed(self._transform, image, mask, name)
        return image, mask, batch.labels[0]

    def __getitems__(self, positions: Sequence[int]) -> list[Sample]:
        """Return the samples of a batch. The `DataLoader` stacks them.

        Raises:
            UserError: The images differ in size, or a sample cannot be returned (see `__getitem__`).
        """
        samples = [self[position] for position in positions]
        if len(sizes := sorted({tuple(image.shape) for image, _, _ in samples})) > 1:
            shapes = " and ".join(" x ".join(map(str, shape)) for shape in sizes[:2])
            raise UserError(
                f"the images of a batch differ in size ({shapes}); use transform=v2.Resize((224, 224)) from "
                "torchvision.transforms, or another transform that makes the sizes equal"
            )
        return samples


def torch_dataset(
    dataset: str | Path | datasets.Dataset | datasets.DatasetDict,
    split: str | None = None,
    *,
    transform: Callable[..., Any] | None = None,
    label_column: str = "label",
    mask_values: Any = None,
    **options: Any,
) -> TorchDataset:
    """Return a split as a torch dataset of (image, mask, label) tensors, which a `DataLoader` batches.

    An image is Float (3, H, W) in [0, 1], in RGB and with its EXIF orientation applied; a mask is Bool (H, W); a label
    is Int64 (). If a sample has no mask, or the transform moves its object out of the image, the mask is False
    everywhere, so `mask.any()` tests whether there is an object. Each row of the dataset is a sample, so an image that
    has several rows occurs several times.

    Args:
        dataset: Argument of `load_dataset`, or an object returned by `datasets.load_dataset`. Its output format does
            not matter.
        split: Name of the split; by default "train", or the split of the given `datasets.Dataset`.
        transform: Function that takes an image (`tv_tensors.Image`) and its mask (`tv_tensors.Mask` of 0 and 1), and
            returns both. Transforms of `torchvision.transforms.v2` change image and mask together and resize masks with
            nearest-neighbour interpolation. Pixels that they add by rotating or padding are not part of the object,
            whatever their `fill` is.
        label_column: Column with the labels: class labels, text or whole numbers.
        mask_values: Pixel values that mark the object in a mask, as in `run`.
        **options: `source`, `revision` and options of synthetic datasets, as in `load_dataset`.

    Raises:
        UserError: The dataset cannot be loaded, has no masks or no usable labels, or the transform ignores masks.
    """
    if type(transform).__module__ == "torchvision.transforms.transforms":
        raise UserError(
            f"{type(transform).__name__} of torchvision.transforms does not transform masks together with their "
            "images; use the transform of this name in torchvision.transforms.v2"
        )
    foreground = " ".join(words_of(mask_values))
    source = find(dataset, **options)
    if split is None:
        own_split = dataset.split if isinstance(dataset, datasets.Dataset) else None
        split = "train" if own_split is None else str(own_split).partition("[")[0]
    rows = source.load_usual(split)[0]
    return TorchDataset(_labelled(rows, label_column, source.text), transform, foreground)


def _labelled(rows: datasets.Dataset, label_column: str, name: str) -> datasets.Dataset:
    """Check that the rows have masks, and return them with this column as `label`.

    Raises:
        UserError: A column is missing, or the labels are neither classes, text nor whole numbers.
    """
    if "mask" not in rows.features:
        raise UserError(
            f"{name} has no column `mask` (it has: {', '.join(rows.column_names)}); rename the column with masks to "
            "`mask`, or add a column `mask` with None in every row if there are no masks"
        )
    if label_column not in rows.features:
        raise unknown(f"column of {name}", label_column, rows.column_names)
    if label_column != "label":
        rows = rows.remove_columns("label") if "label" in rows.features else rows
        rows = rows.rename_column(label_column, "label")
    rows = with_classes(rows)
    kind = getattr(rows.features["label"], "pa_type", None)
    if kind is None or not pa.types.is_integer(kind):
        raise UserError(f"the column {label_column} of {name} does not contain class labels, text or whole numbers")
    return rows


def _pixels(picture: Image.Image) -> Tensor:
    """Convert an RGB picture to Float (3, H, W) in [0, 1]."""
    return torch.from_numpy(np.array(picture)).permute(2, 0, 1).contiguous().float() / 255


def _transformed(transform: Callable[..., Any], image: Tensor, mask: Tensor, name: str) -> tuple[Tensor, Tensor]:
    """Apply a transform, and return (image, mask). The mask is Bool (H, W).

    A torchvision transform receives a second, empty mask together with the mask. The second mask shows which pixels the
    transform fills in.

    Raises:
        UserError: The transform fails, or does not return an image and its mask.
    """
    from torchvision import tv_tensors
    from torchvision.transforms import v2

    is_of_torchvision = isinstance(transform, v2.Transform)
    values = mask.to(torch.uint8)
    values = torch.stack([values, torch.zeros_like(values)]) if is_of_torchvision else values
    try:
        result = transform(tv_tensors.Image(image), tv_tensors.Mask(values))
    except Exception as error:  # a transform of the user may raise any exception
        raise UserError(f"the transform fails on image {name}: {one_line(error, 200)}; {PAIR}") from error
    if not (isinstance(result, tuple | list) and len(result) == 2 and all(isinstance(each, Tensor) for each in result)):
        raise UserError(f"the transform returns {type(result).__name__} for image {name}; {PAIR}")
    changed, moved = (each.as_subclass(Tensor) for each in result)
    if changed.ndim != 3 or changed.shape[1:] != moved.shape[-2:] or moved.ndim != values.ndim:
        shapes = f"{tuple(changed.shape)} and {tuple(moved.shape)}"
        raise UserError(f"the transform returns an image and a mask of shapes {shapes} for image {name}; {PAIR}")
    if is_of_torchvision:
        moved = (moved[0] != 0) & (moved[1] == 0)
    elif not ((moved == 0) | (moved == 1)).all():
        raise UserError(
            f"the transform returns a mask with values other than 0 and 1 for image {name}; resize and rotate masks "
            "with nearest-neighbour interpolation, and fill new pixels with 0"
        )
    return v2.functional.to_dtype(changed, torch.float32, scale=True), moved.bool()
