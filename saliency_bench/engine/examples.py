"""The samples a person would want to look at: best, worst and most disputed, kept with their images and small maps."""

from pathlib import Path
from zipfile import BadZipFile

import numpy as np
import pyarrow.parquet as pq
import torch
from torch.nn import functional as F

from saliency_bench.maps import normalise
from saliency_bench.results.run_folder import is_baseline
from saliency_bench.types import Chunk, Maps
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


def choose(folder: Path, summary: dict) -> list[tuple[str, str]]:
    """(image id, why): by the mean score over explainers of the first metric, and by how much explainers differ on it.

    Baselines have no say.
    """
    metric = summary["cells"][0]["metric_text"]
    cells = {
        cell["cell_id"]: 1.0 if cell["higher_is_better"] else -1.0
        for cell in summary["cells"]
        if cell["metric_text"] == metric and not is_baseline(cell)
    } or {summary["cells"][0]["cell_id"]: 1.0}
    scores: dict[str, list[float]] = {}
    for batch in pq.ParquetFile(folder / "records.parquet").iter_batches(
        columns=["cell_id", "image_id", "part", "value"]
    ):
        for cell, image_id, part, value in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            if cell in cells and part is None and value is not None:
                scores.setdefault(image_id, []).append(cells[cell] * value)
    by_mean = sorted(scores, key=lambda image_id: (-np.mean(scores[image_id]), image_id))
    by_spread = sorted(scores, key=lambda image_id: (-np.ptp(scores[image_id]), image_id)) if len(cells) > 1 else []
    chosen: dict[str, str] = {}
    for kind, ranked in (("best", by_mean), ("worst", by_mean[::-1]), ("most disputed", by_spread)):
        fresh = [image_id for image_id in ranked if image_id not in chosen]
        chosen |= dict.fromkeys(fresh[:PER_KIND], kind)
    return list(chosen.items())


def write_examples(context, summary: dict) -> None:
    """examples.npz: ids, kinds, images (n, H, W, 3) and masks of the chosen samples, and a thumbnail per explainer."""
    chosen = choose(context.out, summary)
    if not chosen:
        return
    ids = pq.read_table(context.out / "predictions.parquet", columns=["image_id"])["image_id"].to_pylist()
    position = {image_id: index for index, image_id in enumerate(ids)}
    rows = [context.rows[position[image_id]] for image_id, _ in chosen]
    batches = [context.classifier.prepare([row]) for row in rows]
    arrays = {
        "ids": np.array([image_id for image_id, _ in chosen]),
        "kinds": np.array([kind for _, kind in chosen]),
        "images": np.stack([eight_bit(batch.images[0]) for batch in batches]),
        "masks": np.stack([batch.masks[0].numpy() for batch in batches]),
    }
    for cell in summary["cells"]:
        found = [_thumbnail(context, cell["parts"], position[image_id]) for image_id, _ in chosen]
        maps = [one for one in found if one is not None]
        if len(maps) == len(chosen):
            arrays[f"maps/{cell['explainer_text']}"] = np.stack(maps)
    save_arrays(context.out / "examples.npz", **arrays)


def _thumbnail(context, parts: str, position: int) -> np.ndarray | None:
    path = context.out / "thumbnails" / parts / f"{position // context.spec.batch_size:06d}.npz"
    if not path.exists():
        return None
    try:
        with np.load(path, allow_pickle=False) as stored:
            return stored["maps"][position % context.spec.batch_size]
    except (OSError, ValueError, KeyError, BadZipFile):  # a picture less is no reason to lose a run
        return None
