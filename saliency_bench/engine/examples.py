"""Samples worth looking at: best, worst and most disputed, kept with their images and small maps."""

import re
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
import pyarrow.parquet as pq
import torch
from torch.nn import functional as F

from saliency_bench.results import records
from saliency_bench.results.cell import CellResult, of_samples
from saliency_bench.results.parts import FEW, files_in, span_of
from saliency_bench.results.run_folder import SCORES, Scores
from saliency_bench.types import Batch, Maps
from saliency_bench.utils.files import load_arrays, save_arrays
from saliency_bench.utils.overlays import LEVELS, eight_bit, scaled

SIDE = 56  # pixels of a thumbnail's longer side, enough for any map that was enlarged from a feature map
PER_KIND = 4
SMALL = re.compile(r"[0-9]{6,}\.npz")  # of one chunk
SPAN = re.compile(r"[0-9]{6,}-[0-9]{6,}\.npz")


def save_thumbnails(folder: Path, number: int, maps: Maps, positions: Sequence[int], batch_size: int) -> None:
    """Maps of samples of a chunk, reduced to `SIDE` and the levels of `heat_map`: for pictures only, never for scores.

    folder: of one explainer's thumbnails.
    """
    height, width = maps.shape[1:]
    scale = min(1.0, SIDE / max(height, width))
    size = max(1, round(height * scale)), max(1, round(width * scale))
    values = torch.from_numpy(np.stack([scaled(one) for one in maps.cpu().numpy()]))[:, None]
    small = F.interpolate(values, size=size, mode="area")[:, 0].numpy()
    small = np.stack([scaled(one) if (one < 0).any() else one for one in small])  # means of both signs are smaller
    pictures = np.zeros((batch_size, *size), dtype=np.int16)
    if (before := _stored(folder, number, batch_size)) is not None and before.shape == pictures.shape:
        pictures = before.astype(np.int16)  # of other samples of this chunk
    pictures[list(positions)] = np.round(LEVELS * small)
    save_arrays(_small(folder, number), **{f"{number:06d}": pictures})


def compact_thumbnails(folder: Path, batch_size: int, *, full: bool = False) -> None:
    """Make one file of those of each span, as `PartFolder.compact` does; what cannot be read is left out."""
    small = sorted(path for path in files_in(folder) if SMALL.fullmatch(path.name))
    if not full and len(list(folder.glob("*.npz"))) <= FEW:
        return
    span = span_of(batch_size)
    for first, own in groupby(small, key=lambda path: int(path.stem) // span * span):
        paths = list(own)
        if len(paths) < (span if full else 1):
            continue
        numbers = range(first, first + span)
        pictures = {f"{number:06d}": _stored(folder, number, batch_size) for number in numbers}
        save_arrays(
            _span(folder, first, batch_size), **{name: one for name, one in pictures.items() if one is not None}
        )
        for path in paths:
            path.unlink()


def thumbnail_strays(folder: Path) -> list[str]:
    """The names in an explainer's folder that are none of thumbnails."""
    return sorted(
        path.name for path in files_in(folder) if not (SMALL.fullmatch(path.name) or SPAN.fullmatch(path.name))
    )


def choose(folder: Path, cells: Sequence[CellResult]) -> list[tuple[str, str]]:
    """[(image id, kind)]: by the mean score over explainers of the first metric, and by how much explainers differ.

    Baselines do not count. Where no metric scores single samples, the first that take part.
    """
    scoring = of_samples(cells)
    if not scoring:
        part = next(iter(cells[0].parts), None)
        found = Scores.of(records.by_cell(folder / "records.parquet", SCORES, [cells[0].cell_id]), part)
        known = np.isfinite(found.values.get(cells[0].cell_id, np.empty(0)))
        return [(found.ids[index], "first") for index in np.flatnonzero(known)[:PER_KIND]]
    rivals = [cell for cell in scoring if not cell.baseline] or scoring[:1]
    signs = {cell.cell_id: 1.0 if cell.higher_is_better else -1.0 for cell in rivals}
    scores = Scores.of(records.by_cell(folder / "records.parquet", SCORES, signs.keys()))
    table = np.stack([sign * scores.values[cell_id] for cell_id, sign in signs.items()], axis=1)
    known = np.isfinite(table).any(axis=1)
    ids, table = np.array(scores.ids)[known], table[known]
    spread = np.nanmax(table, axis=1) - np.nanmin(table, axis=1)
    by_mean = ids[np.lexsort((ids, -np.nanmean(table, axis=1)))].tolist()
    by_spread = ids[np.lexsort((ids, -spread))].tolist() if len(signs) > 1 else []
    chosen: dict[str, str] = {}
    for kind, ranked in (("best", by_mean), ("worst", by_mean[::-1]), ("most disputed", by_spread)):
        fresh = [image_id for image_id in ranked if image_id not in chosen]
        chosen |= dict.fromkeys(fresh[:PER_KIND], kind)
    return list(chosen.items())


def write_examples(
    folder: Path, cells: Sequence[CellResult], batch_size: int, prepared: Callable[[int], Batch]
) -> None:
    """examples.npz: ids, kinds, images (n, H, W, 3) and masks of the chosen samples, and a thumbnail per explainer.

    folder, cells, batch_size: of the run. prepared: position of a sample in the run -> a batch of it alone.
    """
    chosen = choose(folder, cells)
    if not chosen:
        return
    ids = pq.read_table(folder / "predictions.parquet", columns=["image_id"])["image_id"].to_pylist()
    position_of = {image_id: position for position, image_id in enumerate(ids)}
    positions = [position_of[image_id] for image_id, _ in chosen]
    batches = [prepared(position) for position in positions]
    arrays = {
        "ids": np.array([image_id for image_id, _ in chosen]),
        "kinds": np.array([kind for _, kind in chosen]),
        "images": np.stack([eight_bit(batch.images[0]) for batch in batches]),
        "masks": np.stack([batch.masks[0].numpy() for batch in batches]),
    }
    for explainer_id in dict.fromkeys(cell.explainer_id for cell in cells):
        thumbnails = folder / "thumbnails" / explainer_id
        maps = [_thumbnail(thumbnails, position, batch_size) for position in positions]
        if all(small is not None for small in maps):
            arrays[f"maps/{explainer_id}"] = np.stack([small for small in maps if small is not None])
    save_arrays(folder / "examples.npz", **arrays)


def _thumbnail(folder: Path, position: int, batch_size: int) -> np.ndarray | None:
    stored = _stored(folder, position // batch_size, batch_size)
    return None if stored is None or len(stored) <= position % batch_size else stored[position % batch_size]


def _small(folder: Path, number: int) -> Path:
    return folder / f"{number:06d}.npz"


def _span(folder: Path, number: int, batch_size: int) -> Path:
    span = span_of(batch_size)
    first = number // span * span
    return folder / f"{first:06d}-{first + span - 1:06d}.npz"


def _stored(folder: Path, number: int, batch_size: int) -> np.ndarray | None:
    """The thumbnails of a chunk: its own file counts more than that of its span, which is made of such."""
    name = f"{number:06d}"
    for path in (_small(folder, number), _span(folder, number, batch_size)):
        with suppress(OSError, EOFError, ValueError, KeyError, BadZipFile, zlib.error):
            return load_arrays(path, names=[name])[name]
    return None  # a missing picture is no reason to lose a run
