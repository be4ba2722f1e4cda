"""Where the maps of an explainer have their top pixels, of all images of a split, as part files.

The maps explain the class that the classifier predicts: maps of the label would tell a network the label.
"""

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch

from saliency_bench.engine.context import RunContext
from saliency_bench.engine.retraining.pictures import Pictures
from saliency_bench.engine.retraining.splits import Split
from saliency_bench.errors import UserError
from saliency_bench.explainer import Explainer
from saliency_bench.explaining.map_provider import halving, not_finite
from saliency_bench.results.parts import POSITION, PartFolder, held, span_of
from saliency_bench.scoring.retraining import first_exposures
from saliency_bench.target import one_hot
from saliency_bench.utils.files import write_with
from saliency_bench.utils.hashing import hash_of
from saliency_bench.utils.seeds import seed_of

KEY = "first"  # the one key of the part files, and their column


def parts_of(context: RunContext, folder: Path, explainer: Explainer, split: Split) -> PartFolder:
    size = context.spec.batch_size
    return PartFolder(folder / "maps" / hash_of(explainer.identity) / split.name, context.run_id, size, span_of(size))


def missing_chunks(context: RunContext, folder: Path, explainer: Explainer, split: Split) -> list[int]:
    """Drop what is damaged; the chunks that have no file. Only one process at a time."""
    size, count = context.spec.batch_size, len(split.labels)
    there = held(parts_of(context, folder, explainer, split).check(), [KEY], math.ceil(count / size), size)[KEY]
    return sorted({position // size for position in np.flatnonzero(~there.reshape(-1)[:count]).tolist()})


def explain_chunks(
    context: RunContext, folder: Path, explainer: Explainer, split: Split, pictures: Pictures, numbers: list[int],
    done: Callable[[], object],
) -> None:  # fmt: skip
    """Write the part files of these chunks. done: called after each."""
    parts, size, count = parts_of(context, folder, explainer, split), context.spec.batch_size, len(split.labels)
    for number in numbers:
        positions = np.arange(number * size, min((number + 1) * size, count))
        readable = positions[pictures.predicted[split.name][positions] >= 0]
        first: dict[int, bytes | None] = dict.fromkeys(positions.tolist())
        if len(readable):
            made = _first_exposures(context, explainer, split, pictures, readable)
            first |= dict(zip(readable.tolist(), made, strict=True))
        columns = {POSITION: pa.array(first, pa.int64()), KEY: pa.array(first.values(), pa.binary())}
        parts.write(number, {KEY: pa.table(columns)}, None)
        done()


def _first_exposures(
    context: RunContext, explainer: Explainer, split: Split, pictures: Pictures, positions: np.ndarray
) -> list[bytes | None]:
    """Of each image `first_exposures` of its map; None where there is no map."""
    images = pictures.images(split.name, positions).to(context.classifier.device)
    predicted = torch.from_numpy(pictures.predicted[split.name][positions])
    target = one_hot(predicted, context.classes).to(images.device)
    seeds = [seed_of(context.spec.seed, split.samples.ids[position], "explain") for position in positions]
    try:
        maps, _ = halving(explainer.seeded(context.spec.seed), context.classifier, images, target, seeds)
    except UserError:
        raise
    except Exception:  # a chunk without maps; how many images lack one is said once
        return [None] * len(images)
    bad = set(not_finite(maps))
    first = first_exposures(maps.nan_to_num(0, 0, 0).cpu().numpy())
    return [None if index in bad else own.tobytes() for index, own in enumerate(first)]


def gather(context: RunContext, folder: Path, explainer: Explainer, split: Split, into: Path) -> None:
    """The parts as one array that is read without loading it: Uint8 (N, H * W), and which images have a map."""
    parts = parts_of(context, folder, explainer, split)
    parts.compact()
    there = np.zeros(len(split.labels), bool)

    def write(path: Path) -> None:
        array = None
        for part in parts.parts():
            table = part.read(KEY)
            for position, own in zip(table[POSITION].to_pylist(), table[KEY].to_pylist(), strict=True):
                if own is not None:
                    if array is None:
                        shape = len(split.labels), len(own)
                        array = np.lib.format.open_memmap(path, mode="w+", dtype=np.uint8, shape=shape)
                    array[position], there[position] = np.frombuffer(own, np.uint8), True
        if array is None:
            raise UserError(f"{explainer} gives no map of any image of the split {split.name}")
        array.flush()

    base = gathered_at(into, explainer, split)
    write_with(base.with_suffix(".npy"), write)
    write_with(base.with_suffix(".there"), lambda path: path.write_bytes(np.packbits(there).tobytes()))


def gathered(folder: Path, explainer: Explainer, split: Split) -> tuple[np.ndarray, np.ndarray]:
    """(what `gather` has written, memory-mapped; Bool (N,), which images have a map)"""
    base = gathered_at(folder, explainer, split)
    there = np.unpackbits(np.frombuffer(base.with_suffix(".there").read_bytes(), np.uint8), count=len(split.labels))
    return np.load(base.with_suffix(".npy"), mmap_mode="r"), there.astype(bool)


def gathered_at(folder: Path, explainer: Explainer, split: Split) -> Path:
    return folder / f"{hash_of(explainer.identity)}-{split.name}"
