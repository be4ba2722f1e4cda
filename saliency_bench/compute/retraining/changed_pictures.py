"""Store the prepared images of all splits in memory-mapped files, so that no epoch has to decode pictures.

gathered/train.npy ...   Uint8 (N, 3, H, W) if all values are multiples of 1/255 (the usual case), else Float32
gathered/images.json     identity of the images, mean colour of the training images, and predicted classes
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from saliency_bench.compute.reading import ahead, read_batch
from saliency_bench.compute.retraining.splits import RetrainingSplit, Setup, Splits
from saliency_bench.errors import UserError
from saliency_bench.types import Images, Samples
from saliency_bench.utils.files import new_array, read_json, write_json, write_with
from saliency_bench.utils.progress import bar

# Conversions from 0 ... 255 to floats: division by 255 and multiplication by 1/255 differ in the last bits.
SCALES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "divided": lambda whole: whole.astype(np.float32) / np.float32(255),
    "multiplied": lambda whole: whole.astype(np.float32) * np.float32(1 / 255),
}


@dataclass(frozen=True)
class RetrainingPictures:
    """The prepared pictures of all splits, opened as memory-mapped files.

    Attributes:
        folder: Folder of the files.
        colour: Mean colour of the training images, Float32 (3,).
        predicted: {split: Int (N,)} with the class that the run's classifier predicts, -1 for an unreadable image.
        scales: {split: name of the conversion from stored images to floats, None for stored floats}.
        stored: {split: memory-mapped images}.
    """

    folder: Path
    colour: Tensor
    predicted: dict[str, np.ndarray]
    scales: dict[str, str | None]
    stored: dict[str, np.ndarray]

    def images(self, split: str, positions: np.ndarray) -> Images:
        """Return the images (n, 3, H, W) at these positions. They are bit-identical to the prepared images."""
        stored, scale = self.stored[split][positions], self.scales[split]
        return torch.from_numpy(stored if scale is None else SCALES[scale](stored))

    @classmethod
    def read(cls, folder: Path) -> "RetrainingPictures":
        """Open the pictures that `gather_pictures` wrote to a folder."""
        content = read_json(folder / "images.json")
        predicted = {name: np.array(classes, np.int64) for name, classes in content["predicted"].items()}
        stored = {name: np.load(folder / f"{name}.npy", mmap_mode="r") for name in predicted}
        colour = torch.tensor(content["colour"], dtype=torch.float32)
        return cls(folder, colour, predicted, content["tables"], stored)


def gather_pictures(setup: Setup, splits: Splits, folder: Path, shown: bool) -> None:
    """Write the files unless they exist. Show a progress bar if `shown` is True."""
    path, identity = folder / "images.json", [splits.content, [len(split.labels) for split in splits.all]]
    if path.is_file() and read_json(path).get("of") == identity:
        return
    predicted, scales, colour = {}, {}, [0.0, 0.0, 0.0]
    total = sum(math.ceil(len(split.labels) / setup.batch_size) for split in splits.all)
    with bar(shown=shown, total=total, desc="images", unit="batch") as advance:
        for split in splits.all:
            classes, scales[split.name], mean = _gather(setup, split, folder, advance.update)
            predicted[split.name] = classes.tolist()
            if split is splits.train:
                colour = mean
    # Runs of earlier versions read the key "tables".
    write_json(path, {"of": identity, "colour": colour, "predicted": predicted, "tables": scales})


def _gather(
    setup: Setup, split: RetrainingSplit, folder: Path, advance: Callable[[], object]
) -> tuple[np.ndarray, str | None, list[float]]:
    """Write the images of a split to SPLIT.npy in `folder`. `advance` is called after each batch.

    Returns:
        The predicted classes, -1 for unreadable images; the scale of the stored images; and their mean colour.
    """
    predicted = np.full(len(split.labels), -1)
    scale: str | None = None
    sums, pixels = torch.zeros(3, dtype=torch.float64), 0

    def write(path: Path) -> None:
        nonlocal scale, pixels
        array = None
        for samples in _batches(setup, split):
            advance()
            if samples is None:
                continue
            places = samples.positions
            with torch.no_grad():
                predicted[places] = setup.classifier(samples.batch.images).argmax(dim=1).cpu().numpy()
            images = samples.batch.images.cpu()
            if array is None:
                scale = _scale_of(images)
                kind, shape = np.float32 if scale is None else np.uint8, (len(split.labels), *images.shape[1:])
                array = new_array(path, kind, shape)
            elif images.shape[1:] != array.shape[1:]:
                raise UserError("retraining needs images of the same size; use load_classifier(model, size=(H, W))")
            array[places] = images.numpy() if scale is None else _stored(images, scale)
            sums.add_(images.double().sum((0, 2, 3)))
            pixels += images[:, 0].numel()
        if array is None:
            raise UserError(f"no image of the split {split.name} can be read")
        array.flush()

    write_with(folder / f"{split.name}.npy", write)
    return predicted, scale, (sums / pixels).tolist()


def _batches(setup: Setup, split: RetrainingSplit) -> Iterator[Samples | None]:
    """Yield the readable samples of each batch. A thread prepares each batch while the caller uses the previous one."""
    size, count = setup.batch_size, len(split.labels)
    batches = [range(start, min(start + size, count)) for start in range(0, count, size)]
    read = partial(read_batch, split.samples, setup.classifier, strict=False)
    return (batch.samples for _, batch in ahead(read, batches, lambda waited: None))


def _scale_of(images: Images) -> str | None:
    """Return the name of the scale on which these images are whole numbers from 0 to 255, or None if there is none."""
    whole = (images * 255).round().clamp(0, 255).to(torch.uint8).numpy()
    return next((name for name, scale in SCALES.items() if np.array_equal(scale(whole), images.numpy())), None)


def _stored(images: Images, scale: str) -> np.ndarray:
    """Convert images to whole numbers on a scale, or raise UserError if they are not whole numbers on this scale."""
    whole = (images * 255).round().clamp(0, 255).to(torch.uint8).numpy()
    if not np.array_equal(SCALES[scale](whole), images.numpy()):
        raise UserError(
            "after preparation, the pixel values of some images are multiples of 1/255 and those of others are not, so "
            "retraining cannot store them in one file"
        )
    return whole
