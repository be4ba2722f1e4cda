"""Variants of the preprocessing that a network may expect instead of the declared preprocessing."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from PIL import Image

from saliency_bench.compute.classifiers.classifier import Classifier
from saliency_bench.compute.classifiers.model_objects import as_it_is
from saliency_bench.compute.loaded import RunQuestion
from saliency_bench.compute.loading.table import SplitTable
from saliency_bench.compute.predictions import answers
from saliency_bench.compute.reading import ReadBatch
from saliency_bench.data.frames import framed
from saliency_bench.data.geometry import Frame, Geometry
from saliency_bench.errors import UserError
from saliency_bench.types import Images

Values = tuple[float, float, float]
IMAGENET: tuple[Values, Values] = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
NORMALISATIONS: dict[str, tuple[Values, Values]] = {
    "mean and std of ImageNet": IMAGENET,
    "mean 0.5 and std 0.5": ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
    "no normalisation": ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0)),
    "values from 0 to 255": ((0.0, 0.0, 0.0), (1 / 255, 1 / 255, 1 / 255)),
}
# Networks from Caffe: BGR values up to 255 minus the mean of ImageNet.
CAFFE = "BGR values up to 255 without their mean", (IMAGENET[0][2], IMAGENET[0][1], IMAGENET[0][0]), (1 / 255,) * 3
BGR = "BGR instead of RGB"
SAME = 5e-3  # difference below which mean and std count as equal to the declared values
FINE = 32  # pixels; the sides of large images are rounded to multiples of this number, because many networks require it
LARGE, LARGEST = 128, 512  # pixels; images of LARGE or more are not doubled


@dataclass(frozen=True, eq=False)
class Variant:
    """A variant of the preprocessing.

    Attributes:
        kind: "channel order", "normalisation" or "size".
        name: Description of the difference from the declared preprocessing.
        fix: Instruction for declaring this variant.
        classifier: The same network with this preprocessing.
        flipped: Whether the channels are in the order BGR.
        cost: Number of pixels per image, relative to the declared preprocessing.
    """

    kind: str
    name: str
    fix: str
    classifier: Classifier
    flipped: bool = False
    cost: float = 1.0

    def answers(self, data: SplitTable, question: RunQuestion, read: ReadBatch) -> list[dict]:
        """Classify a batch as in a run. If the network rejects images prepared in this way, return an empty list.

        Args:
            data: Samples of the run.
            question: Prediction task of the run.
            read: The batch, with the declared preprocessing.
        """
        try:
            if self.kind == "size":
                read = data.read(self.classifier, read.positions)
            elif self.flipped and read.samples is not None:
                batch = read.samples.batch
                read = read._replace(samples=replace(read.samples, batch=replace(batch, images=batch.images.flip(1))))
            return answers(self.classifier, question, read, data.schema.names)
        except UserError:
            return []


def variants(classifier: Classifier, images: Images, sizes: Sequence[tuple[int, int]]) -> list[Variant]:
    """Return the variants of the preprocessing that the network may expect.

    Args:
        classifier: The network as declared.
        images: Some preprocessed images, of shape (B, 3, H, W).
        sizes: (width, height) of the image files.
    """
    return [
        *_channel_orders(classifier, images),
        *_normalisations(classifier, images),
        *_sizes(classifier, images, sizes),
    ]


def is_grey(images: Images) -> bool:
    """Return whether all images are grey."""
    return bool((images == images[:, :1]).all())


def _channel_orders(classifier: Classifier, images: Images) -> Iterator[Variant]:
    if classifier.channels == 3 and not is_grey(images):
        fix = "the network expects BGR: reverse the channels in its forward method with images.flip(1)"
        yield Variant("channel order", BGR, fix, classifier.variant(), flipped=True)


def _normalisations(classifier: Classifier, images: Images) -> Iterator[Variant]:
    for name, (mean, std) in NORMALISATIONS.items():
        if not (_is(classifier.mean, mean) and _is(classifier.std, std)):
            fix = f"load the network with mean={_spelled(mean)}, std={_spelled(std)}"
            yield Variant("normalisation", name, fix, _normalised(classifier, mean, std))
    if classifier.channels == 3:
        name, means, stds = CAFFE
        other = _normalised(classifier, means, (stds[0], stds[1], stds[2]))
        fix = "the network expects 255 * images.flip(1) minus the mean of ImageNet: compute this in its forward method"
        yield Variant("normalisation", name, fix, other, flipped=True)


def _sizes(classifier: Classifier, images: Images, stored: Sequence[tuple[int, int]]) -> Iterator[Variant]:
    """Yield variants with a different size, with or without cropping.

    The sizes are half to double the side, 224, 256 and the stored size.
    """
    height, width = images.shape[2:]
    short = min(height, width)
    pixels = float(height * width)
    near = [short // 2, short * 7 // 8, -(-short * 8 // 7), *([2 * short] if short <= LARGE else [])]
    near += [side for side in (224, 256) if short / 2 <= side <= 2 * short and short > LARGE]
    sides = sorted({_rounded(side, short) for side in near if side >= 8} - {short})
    geometries = {f"{side} px instead of {short}": _scaled(classifier.geometry, side / short, (height, width))
                  for side in sides}  # fmt: skip
    if any(wide != tall for wide, tall in stored):
        squash = classifier.geometry.crop is not None
        name = "squashed instead of cropped" if squash else "cropped at the centre instead of squashed"
        geometries[name] = Geometry((height, width)) if squash else Geometry(short, (height, width))
    for name, geometry in geometries.items():
        tall, wide = geometry.frame or (height, width)
        size = tall if tall == wide else (tall, wide)
        fix = f"load the network with size={size}" if "px" in name else "prepare the images in this way"
        other = _prepared(classifier, geometry, _frame_of(geometry))
        yield Variant("size", name, fix, other, cost=tall * wide / pixels)
    if len(set(stored)) == 1 and stored[0] != (width, height) and min(stored[0]) not in sides:
        wide, tall = stored[0]
        if max(wide, tall) <= LARGEST:
            other = _prepared(classifier, Geometry(), as_it_is)
            name = f"as stored, {tall} x {wide}, instead of {height} x {width}"
            fix = f"load the network with size={tall if tall == wide else (tall, wide)}"
            yield Variant("size", name, fix, other, cost=tall * wide / pixels)


def _rounded(side: int, short: int) -> int:
    return max(FINE, FINE * round(side / FINE)) if short >= LARGE else side


def _scaled(geometry: Geometry, factor: float, frame: tuple[int, int]) -> Geometry:
    def scaled(sides: tuple[int, int]) -> tuple[int, int]:
        return round(sides[0] * factor), round(sides[1] * factor)

    if geometry.resize is None:
        return Geometry(scaled(frame))
    resize = round(geometry.resize * factor) if isinstance(geometry.resize, int) else scaled(geometry.resize)
    return replace(geometry, resize=resize, crop=geometry.crop and scaled(geometry.crop))


def _frame_of(geometry: Geometry) -> Frame:
    way = Image.Resampling.__members__.get(geometry.resample.upper(), Image.Resampling.BILINEAR)
    return lambda picture: as_it_is(framed(picture, geometry, way))


def _prepared(classifier: Classifier, geometry: Geometry, frame: Frame) -> Classifier:
    other = _normalised(classifier, classifier.mean.flatten().tolist(), classifier.std.flatten().tolist())
    other.geometry, other.frame = geometry, frame
    return other


def _normalised(classifier: Classifier, mean: Sequence[float], std: Sequence[float]) -> Classifier:
    other = classifier.taking_normalised()
    other.mean, other.std = (torch.tensor(values).view(1, 3, 1, 1).to(classifier.mean) for values in (mean, std))
    return other


def _is(values: torch.Tensor, others: Values) -> bool:
    return bool(np.allclose(values.flatten().cpu().numpy(), others, atol=SAME, rtol=0))


def _spelled(values: Values) -> str:
    """Format a mean or std as an argument: one number if all channels are equal, else one number per channel."""
    return f"{values[0]:g}" if len(set(values)) == 1 else f"[{','.join(f'{value:g}' for value in values)}]"
