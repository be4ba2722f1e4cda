"""Samples worth looking at: best, worst and most disputed, kept with their images and small maps."""

from collections.abc import Callable, Sequence
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
import pyarrow.parquet as pq
import torch
from torch.nn import functional as F

from saliency_bench.maps import normalise
from saliency_bench.results.cell import CellResult
from saliency_bench.types import Batch, Chunk, Maps
from saliency_bench.utils.files import save_arrays
from saliency_bench.utils.overlays import eight_bit

SIDE = 56  # pixels of a thumbnail's longer side, enough for any map that was enlarged from a feature map
PER_KIND = 4


def save_thumbnails(path: Path, maps: Maps, chunk: Chunk) -> None:
    """Normalised maps of a chunk, reduced to `SIDE` and 8 bits: for pictures only, never for scores."""
    height, width = maps.shape[1:]
    scale = min(1.0, SIDE / max(height, width))
    size = max(1, round(height * scale)), max(1, round(width * scale))
    values = torch.from_numpy(normalise(maps.cpu().numpy()))[:, None]
    small = F.interpolate(values, size=size, mode="area")[:, 0].numpy()
    pictures = np.zeros((len(chunk.rows), *size), dtype=np.uint8)
    pictures[chunk.readable] = np.round(small * 255)
    save_arrays(path, maps=pictures)


def choose(folder: Path, cells: Sequence[CellResult]) -> list[tuple[str, str]]:
    """[(image id, kind)]: by the mean score over explainers of the first metric, and by how much explainers differ.

    Baselines do not count.
    """
    rivals = [cell for cell in cells if cell.metric_text == cells[0].metric_text and not cell.baseline] or cells[:1]
    signs = {cell.cell_id: 1.0 if cell.higher_is_better else -1.0 for cell in rivals}
    scores: dict[str, list[float]] = {}
    for batch in pq.ParquetFile(folder / "records.parquet").iter_batches(
        columns=["cell_id", "image_id", "part", "value"]
    ):
        for cell_id, image_id, part, value in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            if cell_id in signs and part is None and value is not None:
                scores.setdefault(image_id, []).append(signs[cell_id] * value)
    by_mean = sorted(scores, key=lambda image_id: (-np.mean(scores[image_id]), image_id))
    by_spread = sorted(scores, key=lambda image_id: (-np.ptp(scores[image_id]), image_id)) if len(signs) > 1 else []
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
    for explainer_id, text in {cell.explainer_id: cell.explainer_text for cell in cells}.items():
        thumbnails = folder / "thumbnails" / explainer_id
        maps = [_thumbnail(thumbnails, position, batch_size) for position in positions]
        if all(small is not None for small in maps):
            arrays[f"maps/{text}"] = np.stack([small for small in maps if small is not None])
    save_arrays(folder / "examples.npz", **arrays)


def _thumbnail(folder: Path, position: int, batch_size: int) -> np.ndarray | None:
    path = folder / f"{position // batch_size:06d}.npz"
    if not path.exists():
        return None
    try:
        with np.load(path, allow_pickle=False) as stored:
            return stored["maps"][position % batch_size]
    except (OSError, ValueError, KeyError, BadZipFile):  # a missing picture is no reason to lose a run
        return None
