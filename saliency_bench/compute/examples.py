"""Choose example samples (best, worst, most disputed) and store their images and small maps."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch.nn import functional as F

from saliency_bench.read import records
from saliency_bench.read.cell import CellResult, of_samples
from saliency_bench.read.parts import POSITION, RunStore, thumbnails
from saliency_bench.read.run_folder import SCORES, CellScores
from saliency_bench.types import Batch, Maps
from saliency_bench.utils.files import save_arrays
from saliency_bench.utils.overlays import LEVELS, eight_bit, scaled

SIDE = 56  # pixels of a thumbnail's longer side; enough for any map that was upsampled from a feature map
PER_KIND = 4
THUMBNAILS = pa.schema([(POSITION, pa.int64()), ("height", pa.int32()), ("levels", pa.binary())])


def thumbnail_rows(maps: Maps, positions: Sequence[int]) -> pa.Table:
    """Shrink maps to `SIDE` pixels and quantise them to the levels of `heat_map`. The result is for display only.

    Args:
        maps: Float (n, H, W).
        positions: Positions of their samples in the run.
    """
    height, width = maps.shape[1:]
    scale = min(1.0, SIDE / max(height, width))
    size = max(1, round(height * scale)), max(1, round(width * scale))
    values = torch.from_numpy(np.stack([scaled(values) for values in maps.cpu().numpy()]))[:, None]
    small = F.interpolate(values, size=size, mode="area")[:, 0].numpy()
    # Averaging values of both signs reduces their magnitude, so the result is scaled again.
    small = np.stack([scaled(values) if (values < 0).any() else values for values in small])
    levels = [values.tobytes() for values in np.round(LEVELS * small).astype("<i2")]
    columns = [list(positions), [size[0]] * len(small), levels]
    return pa.table(columns, schema=THUMBNAILS)


def choose(folder: Path, cells: Sequence[CellResult]) -> list[tuple[str, str]]:
    """Return [(image id, category)] of the best, worst and most disputed samples.

    For "best" and "worst", samples are ranked by the first metric's mean score over explainers; for "most disputed", by
    how much the explainers' scores differ. Baselines are ignored. If no metric scores individual samples, the first
    samples with a value for a part of the first metric's score are returned.
    """
    scoring = of_samples(cells)
    if not scoring:
        part = next(iter(cells[0].parts), None)
        first = CellScores.read(records.by_cell(folder / "records.parquet", SCORES, [cells[0].cell_id]), part)
        scored = np.isfinite(first.values.get(cells[0].cell_id, np.empty(0)))
        return [(first.ids[index], "first") for index in np.flatnonzero(scored)[:PER_KIND]]
    rivals = [cell for cell in scoring if not cell.baseline] or scoring[:1]
    signs = {cell.cell_id: 1.0 if cell.higher_is_better else -1.0 for cell in rivals}
    scores = CellScores.read(records.by_cell(folder / "records.parquet", SCORES, signs.keys()))
    table = np.stack([sign * scores.values[cell_id] for cell_id, sign in signs.items()], axis=1)
    scored = np.isfinite(table).any(axis=1)
    ids, table = np.array(scores.ids)[scored], table[scored]
    spread = np.nanmax(table, axis=1) - np.nanmin(table, axis=1)
    by_mean = ids[np.lexsort((ids, -np.nanmean(table, axis=1)))].tolist()
    by_spread = ids[np.lexsort((ids, -spread))].tolist() if len(signs) > 1 else []
    chosen: dict[str, str] = {}
    for kind, ranked in (("best", by_mean), ("worst", by_mean[::-1]), ("most disputed", by_spread)):
        fresh = [image_id for image_id in ranked if image_id not in chosen]
        chosen |= dict.fromkeys(fresh[:PER_KIND], kind)
    return list(chosen.items())


def write_examples(store: RunStore, cells: Sequence[CellResult], prepared: Callable[[int], Batch]) -> None:
    """Write examples.npz: ids, categories, images (n, H, W, 3), masks and map thumbnails of the chosen samples.

    Args:
        store: Part files of the run.
        cells: Cells of the run.
        prepared: Function that returns a batch of one sample, given the sample's position in the run.
    """
    folder = store.out
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
    parts = [part for part in store.thumbnails.parts() if part.is_whole()]
    for explainer_id in dict.fromkeys(cell.explainer_id for cell in cells):
        pictures = thumbnails(parts, explainer_id, positions)
        if pictures.keys() >= set(positions):
            arrays[f"maps/{explainer_id}"] = np.stack([pictures[position] for position in positions])
    save_arrays(folder / "examples.npz", **arrays)
