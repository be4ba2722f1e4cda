"""Store which pixels of an explainer's maps are among the top pixels at each exposure, for all images of a split.

The maps explain the class that the classifier predicts, because maps for the label would reveal the label.

maps/EXPLAINER/SPLIT/000001.npz    images of a span, written when the span is complete
gathered/EXPLAINER-SPLIT.npy       all spans as one array, which can be memory-mapped
"""

import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from saliency_bench.bound_explainer import Explainer
from saliency_bench.compute.maps.map_provider import halving, not_finite
from saliency_bench.compute.retraining.changed_pictures import RetrainingPictures
from saliency_bench.compute.retraining.splits import RetrainingSplit, Setup
from saliency_bench.compute.scoring.retraining import first_exposures
from saliency_bench.errors import UserError
from saliency_bench.target_weights import one_hot
from saliency_bench.utils.files import new_array, save_arrays, write_with
from saliency_bench.utils.hashing import hash_of
from saliency_bench.utils.seeds import seed_of

SPAN = 256  # approximate number of images per file; if a process is killed, at most the maps of one file are lost
NONE = 255  # value of every pixel of an image without a map; indices of exposures are smaller


def spans_of(setup: Setup, split: RetrainingSplit) -> list[range]:
    """Return the positions in each file. These are whole batches, so maps do not depend on which files exist."""
    size, count = max(1, SPAN // setup.batch_size) * setup.batch_size, len(split.labels)
    return [range(start, min(start + size, count)) for start in range(0, count, size)]


def missing_spans(setup: Setup, folder: Path, explainer: Explainer, split: RetrainingSplit) -> list[int]:
    """Return the indices of the spans that have no readable file."""
    return [
        number
        for number, span in enumerate(spans_of(setup, split))
        if _read(_span_file(folder, explainer, split, number), len(span)) is None
    ]


def explain_spans(
    setup: Setup, folder: Path, explainer: Explainer, split: RetrainingSplit, pictures: RetrainingPictures,
    numbers: list[int], advance: Callable[[], object],
) -> None:  # fmt: skip
    """Explain the images of these spans and write the files. `advance` is called after each span."""
    height, width = pictures.stored[split.name].shape[2:]
    for number in numbers:
        span = spans_of(setup, split)[number]
        first = np.full((len(span), height * width), NONE, np.uint8)
        for start in range(span.start, span.stop, setup.batch_size):
            positions = np.arange(start, min(start + setup.batch_size, span.stop))
            readable = positions[pictures.predicted[split.name][positions] >= 0]
            if len(readable):
                first[readable - span.start] = _first_exposures(setup, explainer, split, pictures, readable)
        # Compress the file, because neighbouring pixels mostly have the same exposure.
        save_arrays(_span_file(folder, explainer, split, number), first=first)
        advance()


def _first_exposures(
    setup: Setup, explainer: Explainer, split: RetrainingSplit, pictures: RetrainingPictures, positions: np.ndarray
) -> np.ndarray:
    """Return `first_exposures` of each image's map, (n, H * W), with the value `NONE` for an image without a map."""
    images = pictures.images(split.name, positions).to(setup.classifier.device)
    predicted = torch.from_numpy(pictures.predicted[split.name][positions])
    target = one_hot(predicted, setup.classes).to(images.device)
    seeds = [seed_of(setup.seed, split.samples.ids[position], "explain") for position in positions]
    try:
        made, _ = halving(explainer.seeded(setup.seed), setup.classifier, images, target, seeds)
    except UserError:
        raise
    except Exception:  # no maps for this batch; a message counts the images without a map
        return np.full((len(images), images[0, 0].numel()), NONE, np.uint8)
    maps = made.maps
    first = first_exposures(maps.nan_to_num(0, 0, 0).cpu().numpy()).reshape(len(images), -1)
    first[list(not_finite(maps))] = NONE
    return first


def gather(setup: Setup, folder: Path, explainer: Explainer, split: RetrainingSplit, target: Path) -> None:
    """Join the files of all spans into one array, or raise UserError if no image of the split has a map."""
    spans = spans_of(setup, split)

    def write(path: Path) -> None:
        array, has_maps = None, False
        for number, span in enumerate(spans):
            first = _read(_span_file(folder, explainer, split, number), len(span))
            assert first is not None  # all processes have finished their spans
            if array is None:
                shape = (len(split.labels), first.shape[1])
                array = new_array(path, np.uint8, shape)
            array[span.start : span.stop] = first
            has_maps |= bool((first[:, 0] != NONE).any())
        if array is None or not has_maps:
            raise UserError(f"{explainer} returns no map for any image of the split {split.name}")
        array.flush()

    write_with(_gathered_file(target, explainer, split), write)


def read_gathered(target: Path, explainer: Explainer, split: RetrainingSplit) -> tuple[np.ndarray, np.ndarray]:
    """Return the memory-mapped result of `gather`: Uint8 (N, H * W), and whether each image has a map, Bool (N,)."""
    first = np.load(_gathered_file(target, explainer, split), mmap_mode="r")
    return first, np.asarray(first[:, 0]) != NONE


def _span_file(folder: Path, explainer: Explainer, split: RetrainingSplit, number: int) -> Path:
    return folder / "maps" / hash_of(explainer.identity) / split.name / f"{number:06}.npz"


def _gathered_file(target: Path, explainer: Explainer, split: RetrainingSplit) -> Path:
    return target / f"{hash_of(explainer.identity)}-{split.name}.npy"


def _read(path: Path, images: int) -> np.ndarray | None:
    """Read a span of this many images. Return None if the file is missing or damaged."""
    try:
        with np.load(path) as content:
            first = content["first"]
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error):
        return None
    return first if len(first) == images else None
